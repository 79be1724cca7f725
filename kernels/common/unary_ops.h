/* Functions of one value: GK_UNARY(name, f(x; p, q, s), gradient (dy, x; p, q, s)). Names and edge cases are those of torch.<name>. */
#define GK_UNARY(name, fwd, bwd) \
    GK_FN gk_f name##_fwd(gk_f x, gk_f p, gk_f q, gk_f s) { return fwd; } \
    GK_FN gk_f name##_bwd(gk_f dy, gk_f x, gk_f p, gk_f q, gk_f s) { return bwd; }
/* Functions without a gradient. */
#define GK_UNARY_FLAT(name, fwd) \
    GK_FN gk_f name##_fwd(gk_f x, gk_f p, gk_f q, gk_f s) { return fwd; }


#if GK_IS_FLOAT
GK_UNARY(gk_op_neg, -x, -dy)
#define gk_op_neg_arity 1
GK_UNARY(gk_op_exp, gk_exp(x), dy * gk_exp(x))
#define gk_op_exp_arity 1
GK_UNARY(gk_op_isnan, gk_isnan(x) ? GK_R(1.0) : GK_R(0.0), GK_R(0.0))
#define gk_op_isnan_arity 1
#endif
