/* Matrices whose rows are made whole items of 16 bytes before a product, and whose results lose what was added: vendor libraries have slow kernels
 * alone for rows of other lengths. Launch: grid-stride over items of 16 bytes of Y. Exact, deterministic: one writer per element. */

// Units: FLOATS
/* y[r, c] = x[r, c] where r < rows and c < cols, else 0: X has rows `ldx` elements apart, Y has rows of `pitch` elements side by side, n elements in all,
 * from a multiple of 16 bytes on. Reference: torch.nn.functional.pad(x, (0, pitch - cols, 0, n // pitch - rows)). */
GK_KERNEL(gemm_repitch)(GK_IN(gk_t, x), GK_OUT(gk_t, y), gk_i64 n, gk_i64 rows, gk_i64 cols, gk_i64 ldx, gk_i64 pitch)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid() * GK_W; i < n; i += gk_gsize() * GK_W) {
        gk_i64 r = i / pitch, c = i - r * pitch;
        gk_vec q;
        GK_UNROLL for (int k = 0; k < GK_W; k++) {
            q.v[k] = r < rows && c < cols ? gk_load(x, r * ldx + c) : GK_R(0.0);
            if (++c == pitch) {
                c = 0;
                r++;
            }
        }
        if (i + GK_W <= n) {
            gk_storev(y, i, q);
        } else {
            for (int k = 0; i + k < n; k++) gk_store(y, i + k, q.v[k]);
        }
    }
}
