/* What kernels with tiles in local memory share: storage of a tile, runs of four values, activations of their epilogues. */
#include "common/activation/activation_ops.h"

/* ---- tiles in local memory: runs of four values are read and written as 16 bytes ------------------------------------------------ */

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

/* Two results of 16 bits, the first in the lower half: rounded to nearest even, a NaN keeps neither sign nor payload. */
#if GK_DTYPE == GK_BF16 && defined(GK_QUICK_BF16)
#define GK_PACK_SUMS(x, y) gk_quick_bf16x2(x, y)
#else
#define GK_PACK_SUMS(x, y) GK_PACK2(x, y)
#endif

/* ---- activations, by the numbers that the host knows them under ------------------------------------------------------------- */

#define GK_EACH(f) GK_UNROLL for (int u = 0; u < 4; u++) x.v[u] = f(x.v[u], p, GK_R(0.0), GK_R(0.0))
GK_FN gk_four gk_activate(int act, gk_four x, gk_f p)
{
    switch (act) {
    case 1: GK_EACH(gk_act_relu_fwd); break;
    case 2: GK_EACH(gk_act_leaky_relu_fwd); break;
    case 3: GK_EACH(gk_act_gelu_fwd); break;
    case 4: GK_EACH(gk_act_gelu_tanh_fwd); break;
    case 5: GK_EACH(gk_act_sigmoid_fwd); break;
    case 6: GK_EACH(gk_act_tanh_fwd); break;
    case 7: GK_EACH(gk_act_swish_fwd); break;
    case 8: GK_EACH(gk_act_hardswish_fwd); break;
    default: break;
    }
    return x;
}
