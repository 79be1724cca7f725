/* Activations: as GK_UNARY. The gradient's x is the saved tensor: the input, or the output where the function says so. */
#if GK_IS_FLOAT
/* saved: input or output (both have the same sign) */
GK_UNARY(gk_act_relu, x <= GK_R(0.0) ? GK_R(0.0) : x, x <= GK_R(0.0) ? GK_R(0.0) : dy)
#define gk_act_relu_arity 1
GK_UNARY(gk_act_leaky_relu, x > GK_R(0.0) ? x : p * x, x > GK_R(0.0) ? dy : p * dy)
#define gk_act_leaky_relu_arity 1
GK_UNARY(gk_act_sigmoid, GK_R(1.0) / (GK_R(1.0) + gk_exp(-x)), dy * x * (GK_R(1.0) - x))
#define gk_act_sigmoid_arity 1
GK_UNARY(gk_act_tanh, gk_tanh(x), dy * (GK_R(1.0) - x * x))
#define gk_act_tanh_arity 1
GK_UNARY(gk_act_gelu, GK_R(0.5) * x * gk_erfc(-x * GK_R(0.70710678118654752440)),
    dy * (GK_R(0.5) * gk_erfc(-x * GK_R(0.70710678118654752440)) + x * GK_R(0.39894228040143267794) * gk_exp(GK_R(-0.5) * x * x)))
#define gk_act_gelu_arity 1
#define GK_T(x) gk_tanh(GK_R(0.79788456080286535588) * (x + GK_R(0.044715) * x * x * x))
GK_UNARY(gk_act_gelu_tanh, GK_R(0.5) * x * (GK_R(1.0) + GK_T(x)),
    dy * (GK_R(0.5) * (GK_R(1.0) + GK_T(x)) + GK_R(0.5) * x * (GK_R(1.0) - GK_T(x) * GK_T(x)) * GK_R(0.79788456080286535588) * (GK_R(1.0) + GK_R(0.134145) * x * x)))
#define gk_act_gelu_tanh_arity 1
#define GK_S(x) (GK_R(1.0) / (GK_R(1.0) + gk_exp(-(x))))
GK_UNARY(gk_act_swish, x * GK_S(p * x), dy * (GK_S(p * x) + p * x * GK_S(p * x) * (GK_R(1.0) - GK_S(p * x))))
#define gk_act_swish_arity 1
GK_UNARY(gk_act_hardswish, x <= GK_R(-3.0) ? GK_R(0.0) : x >= GK_R(3.0) ? x : x * (x + GK_R(3.0)) / GK_R(6.0),
    x <= GK_R(-3.0) ? GK_R(0.0) : x >= GK_R(3.0) ? dy : dy * (x / GK_R(3.0) + GK_R(0.5)))
#define gk_act_hardswish_arity 1
#endif
