/* Functions of three values. Names and edge cases are those of torch.<name>. */
#include "functions.h"

/* c is the weight; exact at 0 and 1 */
GK_TERNARY(gk_op_lerp3, c < GK_R(0.5) ? a + c * (b - a) : b - (b - a) * (GK_R(1.0) - c), dy * (GK_R(1.0) - c), dy * c, dy * (b - a))
GK_TERNARY(gk_op_fma, gk_fma(a, b, c), dy * b, dy * a, dy)
GK_TERNARY(gk_op_addcmul, a + p * b * c, dy, dy * p * c, dy * p * b)
GK_TERNARY(gk_op_addcdiv, a + p * b / c, dy, dy * p / c, -dy * p * (b / c) / c)
/* bounds b and c; where they cross, c wins */
GK_TERNARY(gk_op_clamp3, gk_min(gk_max(a, b), c), (a > b && a < c) ? dy : GK_R(0.0), (a < b && b < c) ? dy : GK_R(0.0),
    (a > c || c < b) ? dy : GK_R(0.0))
