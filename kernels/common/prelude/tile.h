/* What kernels with tiles in local memory share: storage of a tile, runs of four values, activations of their epilogues. */
#include "common/activation/activation_ops.h"
#include "common/prelude/slot.h"

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
