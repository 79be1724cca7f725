/* Maps whose operands differ in type. Merged axes, one list of strides per operand, counted in elements.
 * Launch: grid-stride over elements (16-byte items where `wide` is set: all tensors without gaps, aligned bases). Deterministic.
 * References: torch.where, torch.ldexp.
 */
#include "common/prelude/bytes.h"
#include "common/prelude/strided.h"
#include "functions.h"

#if GK_DTYPE != GK_F32 && GK_DTYPE != GK_BF16 && GK_DTYPE != GK_F64
/* Storage bits that the mask selects in word `w` of a 16-byte item. */
GK_FN gk_u32 gk_mask_word(GK_GLOBAL const gk_u8* c, gk_i64 i, int w)
{
#if GK_W == 2
    return c[i + w / 2] ? 0xffffffffu : 0u;
#elif GK_W == 4
    return c[i + w] ? 0xffffffffu : 0u;
#elif GK_W == 8
    return (c[i + 2 * w] ? 0xffffu : 0u) | (c[i + 2 * w + 1] ? 0xffff0000u : 0u);
#else
    return (c[i + 4 * w] ? 0xffu : 0u) | (c[i + 4 * w + 1] ? 0xff00u : 0u) | (c[i + 4 * w + 2] ? 0xff0000u : 0u) | (c[i + 4 * w + 3] ? 0xff000000u
        : 0u);
#endif
}

// Units: SIZES
/* y[i] = c[i] ? a[i] : b[i]. A copy of bits: any type of the unit's size goes through the unit's. */
GK_KERNEL(where_nd)(GK_IN(gk_u8, c), GK_IN(gk_t, a), GK_IN(gk_t, b), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sc),
                    GK_DIMS(sa), GK_DIMS(sb), GK_DIMS(sy))
{
    GK_BIND_IN(gk_u8, c); GK_BIND_IN(gk_t, a); GK_BIND_IN(gk_t, b); GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_i64 e = i * GK_W;
        gk_raw16 u = gk_load16((GK_GLOBAL const void*)(a + e)), v = gk_load16((GK_GLOBAL const void*)(b + e));
        gk_u32 m0 = gk_mask_word(c, e, 0), m1 = gk_mask_word(c, e, 1), m2 = gk_mask_word(c, e, 2), m3 = gk_mask_word(c, e, 3);
        gk_store16((GK_GLOBAL void*)(y + e), gk_make16((u.x & m0) | (v.x & ~m0), (u.y & m1) | (v.y & ~m1), (u.z & m2) | (v.z & ~m2),
                                                       (u.w & m3) | (v.w & ~m3)));
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ic = 0, ia = 0, ib = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ic += r * sc.v[d]; ia += r * sa.v[d]; ib += r * sb.v[d]; iy += r * sy.v[d]; });
        y[iy] = c[ic] ? a[ia] : b[ib];
    }
}
#endif

#if GK_IS_FLOAT
// Units: FLOATS64
/* da[i] (+)= c[i] ? dy[i] : 0, db[i] (+)= c[i] ? 0 : dy[i]; either may be null. */
GK_KERNEL(where_bwd)(GK_IN(gk_t, dy), GK_IN(gk_u8, c), GK_OUT(gk_t, da), GK_OUT(gk_t, db), gk_i64 n, int wide, int rank, GK_DIMS(shape),
                     GK_DIMS(sdy), GK_DIMS(sc), GK_DIMS(sda), GK_DIMS(sdb), int acc_a, int acc_b)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_u8, c); GK_BIND_OUT(gk_t, da); GK_BIND_OUT(gk_t, db);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_bytes m = gk_bytes_at(c, i * GK_W);
        gk_vec g = gk_loadv(dy, i * GK_W), a = g, b = g;
        if (da && acc_a) a = gk_loadv(da, i * GK_W);
        if (db && acc_b) b = gk_loadv(db, i * GK_W);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            int first = gk_byte_set(m, k);
            a.v[k] = first ? (acc_a ? a.v[k] + g.v[k] : g.v[k]) : acc_a ? a.v[k] : GK_R(0.0);
            b.v[k] = !first ? (acc_b ? b.v[k] + g.v[k] : g.v[k]) : acc_b ? b.v[k] : GK_R(0.0);
        }
        if (da) gk_storev(da, i * GK_W, a);
        if (db) gk_storev(db, i * GK_W, b);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ig = 0, ic = 0, ja = 0, jb = 0;
        GK_ND(i, n, rank, shape, { ig += r * sdy.v[d]; ic += r * sc.v[d]; ja += r * sda.v[d]; jb += r * sdb.v[d]; });
        gk_f g = gk_load(dy, ig);
        int first = c[ic] != 0;
        if (da && (first || !acc_a)) gk_store(da, ja, first ? (acc_a ? gk_load(da, ja) + g : g) : GK_R(0.0));
        if (db && (!first || !acc_b)) gk_store(db, jb, first ? GK_R(0.0) : (acc_b ? gk_load(db, jb) + g : g));
    }
}

/* y[i] (+)= a[i] * 2^e[i]: torch.ldexp and its gradient with respect to a. */
GK_KERNEL(ldexp_nd)(GK_IN(gk_t, a), GK_IN(int, e), GK_OUT(gk_t, y), gk_i64 n, int wide, int rank, GK_DIMS(shape), GK_DIMS(sa), GK_DIMS(se),
                    GK_DIMS(sy), int accumulate)
{
    GK_BIND_IN(gk_t, a); GK_BIND_IN(int, e); GK_BIND_OUT(gk_t, y);
    gk_i64 items = wide ? n / GK_W : 0;
    for (gk_i64 i = gk_gid(); i < items; i += gk_gsize()) {
        gk_i64 at = i * GK_W;
        gk_vec v = gk_loadv(a, at), o = v;
        int by[GK_W];
#if GK_W == 2
        gk_u64 q = *(GK_GLOBAL const gk_u64*)(e + at);
        by[0] = (int)(gk_u32)q;
        by[1] = (int)(gk_u32)(q >> 32);
#else
        GK_UNROLL for (int j = 0; j < GK_W; j += 4) {
            gk_raw16 q = gk_load16((GK_GLOBAL const void*)(e + at + j));
            by[j] = (int)q.x; by[j + 1] = (int)q.y; by[j + 2] = (int)q.z; by[j + 3] = (int)q.w;
        }
#endif
        if (accumulate) o = gk_loadv(y, at);
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            v.v[k] = gk_ldexp(v.v[k], by[k]);
            if (accumulate) v.v[k] = o.v[k] + v.v[k];
        }
        gk_storev(y, at, v);
    }
    for (gk_i64 i = items * GK_W + gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 ia = 0, ie = 0, iy = 0;
        GK_ND(i, n, rank, shape, { ia += r * sa.v[d]; ie += r * se.v[d]; iy += r * sy.v[d]; });
        gk_f v = gk_ldexp(gk_load(a, ia), e[ie]);
        gk_store(y, iy, accumulate ? gk_load(y, iy) + v : v);
    }
}
#endif
