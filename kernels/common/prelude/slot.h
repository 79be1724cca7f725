/* Storage in local memory whose runs of four values are read and written as 16 bytes. Values are addressed singly; runs begin at a multiple of four. */
typedef struct { gk_f v[4]; } gk_four;

#if GK_DTYPE == GK_F64
typedef double gk_slot;
#define GK_SLOTS(n) (n)
#define gk_slot_put(t, i, x) ((t)[i] = (x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w) { t[i] = x; t[i + 1] = y; t[i + 2] = z; t[i + 3] = w; }
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_four r;
    GK_UNROLL for (int u = 0; u < 4; u++) r.v[u] = t[i + u];
    return r;
}
#else
typedef gk_raw16 gk_slot;
#define GK_SLOTS(n) ((n) / 4)
#define gk_slot_put(t, i, x) (((GK_LOCAL_PTR gk_u32*)(t))[i] = gk_as_u32(x))
GK_FN void gk_slot_put4(GK_LOCAL_PTR gk_slot* t, int i, gk_f x, gk_f y, gk_f z, gk_f w)
{
    t[i / 4] = gk_make16(gk_as_u32(x), gk_as_u32(y), gk_as_u32(z), gk_as_u32(w));
}
GK_FN gk_four gk_slot_get4(GK_LOCAL_PTR const gk_slot* t, int i)
{
    gk_raw16 q = t[i / 4];
    gk_four r;
    r.v[0] = gk_as_f32(q.x); r.v[1] = gk_as_f32(q.y); r.v[2] = gk_as_f32(q.z); r.v[3] = gk_as_f32(q.w);
    return r;
}
#endif
