/* Scans whose state is a matrix S [rows, width] per batch and head, with rows that do not depend on each other:
 *
 *   S[i, n] = g S[i, n] + u[i] k[n]        y[i] = sum over n of S[i, n] q[n]
 *
 * GK_OP says what the factor g and the input u are at each step:
 *
 *   gk_rule_gla        g [B, T, H], u = v                                gated linear attention
 *   gk_rule_gla_key    g [B, T, H, width], u = v                         the same with a factor per column
 *   gk_rule_delta      g [B, T, H], u = b (v - g sum S k)                gated delta rule
 *   gk_rule_selective  g = exp(dt A), dt [B, T, rows], A [rows, width], u = dt v     selective state-space model (H = 1)
 *   gk_rule_ssd        g = exp(dt A), dt [B, T, H], A [H], u = dt v                  state-space duality
 *
 * q and k have `groups` heads, each for heads / groups of the others.
 * size = {steps, heads, rows, groups, split, splits, width, batch}.
 */
#define gk_rule_gla 0
#define gk_rule_gla_key 1
#define gk_rule_delta 2
#define gk_rule_selective 3
#define gk_rule_ssd 4
#define GK_STATE_EXP (GK_OP >= 3)

/* log2 e */
#define GK_STATE_LOG2E GK_R(1.4426950408889634)

/* Operands. wide: which rows are whole items of 16 bytes. */
typedef struct {
    GK_GLOBAL const gk_t* q;
    GK_GLOBAL const gk_t* k;
    GK_GLOBAL const gk_t* v;
    GK_GLOBAL const gk_t* gate;
    GK_GLOBAL const gk_t* second;
    int wide, softplus;
} gk_state_in;
