/* Activations that other kernels apply to what they computed, chosen by number (as in gemm/gemm.c): 0 none, 1 relu, 2 leaky relu, 3 gelu, 4 gelu by
 * tanh, 5 sigmoid, 6 tanh, 7 swish, 8 hardswish; p is their parameter. Called and not inlined: one copy serves a unit. */
#ifndef GK_FUSED_ACT_H
#define GK_FUSED_ACT_H
#include "activation_ops.h"

#define GK_EACH_OF(f) GK_UNROLL for (int k = 0; k < GK_W; k++) v.v[k] = f(v.v[k], p, GK_R(0.0), GK_R(0.0))
GK_FN_CALL gk_vec gk_fused_act(int act, gk_vec v, gk_f p)
{
    switch (act) {
    case 1: GK_EACH_OF(gk_act_relu_fwd); break;
    case 2: GK_EACH_OF(gk_act_leaky_relu_fwd); break;
    case 3: GK_EACH_OF(gk_act_gelu_fwd); break;
    case 4: GK_EACH_OF(gk_act_gelu_tanh_fwd); break;
    case 5: GK_EACH_OF(gk_act_sigmoid_fwd); break;
    case 6: GK_EACH_OF(gk_act_tanh_fwd); break;
    case 7: GK_EACH_OF(gk_act_swish_fwd); break;
    case 8: GK_EACH_OF(gk_act_hardswish_fwd); break;
    default: break;
    }
    return v;
}

/* Gradient at v, the activation's input, or its output where `output` (for functions that know their slope from it). */
#define GK_EACH_BACK(f) GK_UNROLL for (int k = 0; k < GK_W; k++) dy.v[k] = f(dy.v[k], v.v[k], p, GK_R(0.0), GK_R(0.0))
GK_FN_CALL gk_vec gk_fused_act_bwd(int act, gk_vec dy, gk_vec v, gk_f p, int output)
{
    if (!output && (act == 5 || act == 6)) v = gk_fused_act(act, v, p);
    switch (act) {
    case 1: GK_EACH_BACK(gk_act_relu_bwd); break;
    case 2: GK_EACH_BACK(gk_act_leaky_relu_bwd); break;
    case 3: GK_EACH_BACK(gk_act_gelu_bwd); break;
    case 4: GK_EACH_BACK(gk_act_gelu_tanh_bwd); break;
    case 5: GK_EACH_BACK(gk_act_sigmoid_bwd); break;
    case 6: GK_EACH_BACK(gk_act_tanh_bwd); break;
    case 7: GK_EACH_BACK(gk_act_swish_bwd); break;
    case 8: GK_EACH_BACK(gk_act_hardswish_bwd); break;
    default: break;
    }
    return dy;
}

/* Both: the activation at v, and its gradient there for dy. What they have in common is computed once. */
typedef struct { gk_vec y, dv; } gk_act_both;
#define GK_BOTH_OF(f, saved) GK_UNROLL for (int k = 0; k < GK_W; k++) { \
        r.y.v[k] = f##_fwd(v.v[k], p, GK_R(0.0), GK_R(0.0)); \
        r.dv.v[k] = f##_bwd(dy.v[k], saved.v[k], p, GK_R(0.0), GK_R(0.0)); \
    }
GK_FN_CALL gk_act_both gk_fused_act_both(int act, gk_vec dy, gk_vec v, gk_f p)
{
    gk_act_both r;
    r.y = v;
    r.dv = dy;
    switch (act) {
    case 1: GK_BOTH_OF(gk_act_relu, v); break;
    case 2: GK_BOTH_OF(gk_act_leaky_relu, v); break;
    case 3: GK_BOTH_OF(gk_act_gelu, v); break;
    case 4: GK_BOTH_OF(gk_act_gelu_tanh, v); break;
    case 5: GK_BOTH_OF(gk_act_sigmoid, r.y); break;
    case 6: GK_BOTH_OF(gk_act_tanh, r.y); break;
    case 7: GK_BOTH_OF(gk_act_swish, v); break;
    case 8: GK_BOTH_OF(gk_act_hardswish, v); break;
    default: break;
    }
    return r;
}

#endif
