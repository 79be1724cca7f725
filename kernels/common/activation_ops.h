/* Activations: as GK_UNARY. The gradient's x is the saved tensor: the input, or the output where the function says so. */
#if GK_IS_FLOAT
/* saved: input or output (both have the same sign) */
GK_UNARY(gk_act_relu, x <= GK_R(0.0) ? GK_R(0.0) : x, x <= GK_R(0.0) ? GK_R(0.0) : dy)
#define gk_act_relu_arity 1
#endif
