/* Operands in f32 as sums of two numbers that TF32 has, so that one product in TF32 over three times as many terms is nearly one in f32:
 *
 *   x = large + small      A B ~ small(A) large(B) + large(A) small(B) + large(A) large(B)
 *
 * Reference: Ootomo and Yokota (2022).
 */

// Units: F32
/* The parts of matrices [batch, outer, inner] whose rows are `ldx` and which are `batch_step` elements apart: for A small, large, large; for B large,
 * small, large. Part p of an element is `part` elements behind part p - 1, and rows of Y are `row` elements apart. n: runs of four elements; all of them
 * begin at multiples of 16 bytes. What is infinite or NaN has 0 as its small part. Launch: grid-stride over runs. */
GK_KERNEL(gemm_parts)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, gk_i64 outer, gk_i64 inner, gk_i64 ldx, gk_i64 batch_step, gk_i64 row, gk_i64 part,
                      int of_b)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 at = i * 4 % inner, o = i * 4 / inner, b = o / outer;
        gk_i64 to = b * 3 * outer * inner + (o - b * outer) * row + at;
        gk_vec v = gk_loadv(x, b * batch_step + (o - b * outer) * ldx + at), large = v, small = v;
        GK_UNROLL for (int u = 0; u < 4; u++) {
            /* The 11 leading bits, rounded to nearest even. */
            gk_u32 w = gk_as_u32(v.v[u]);
            large.v[u] = gk_as_f32((w + 0xfffu + ((w >> 13) & 1u)) & 0xffffe000u);
            small.v[u] = v.v[u] - large.v[u];
            if (gk_isnan(v.v[u]) || gk_isinf(large.v[u])) { large.v[u] = v.v[u]; small.v[u] = GK_R(0.0); }
        }
        gk_storev(y, to, of_b ? large : small);
        gk_storev(y, to + part, of_b ? small : large);
        gk_storev(y, to + 2 * part, large);
    }
}
