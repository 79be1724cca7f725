/* X / (|X| + eps) with the Frobenius norm of each matrix of a batch: what the Newton-Schulz iteration begins with; its products are matrix products.
 *
 * Launch: a block per matrix and chunk. Sums in gk_f: a chunk's in a tree, then the chunks' in order. Deterministic. Reference: K. Jordan et al., "Muon: an
 * optimizer for hidden layers in neural networks" (2024), zeropower_via_newtonschulz5.
 */

// Units: REALS
/* part[batch, splits] = sums of squares of chunks of x [batch, n]. */
GK_KERNEL(square_sums)(GK_IN(gk_t, x), GK_OUT(gk_f, part), gk_i64 n, gk_i64 chunk, gk_i64 splits, gk_i64 work)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_f, part);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    for (gk_i64 w = gk_bid(0); w < work; w += gk_nblocks(0)) {
        gk_i64 from = w % splits * chunk, to = from + chunk < n ? from + chunk : n;
        gk_f sum = GK_R(0.0);
        for (gk_i64 i = from + gk_lid(); i < to; i += GK_BLOCK) {
            gk_f v = gk_load(x, w / splits * n + i);
            sum += v * v;
        }
        sum = gk_block_sum(sum, tmp);
        if (gk_lid() == 0) part[w] = sum;
        GK_BARRIER();
    }
}

/* y = x / (sqrt(sum of the chunks) + eps). */
GK_KERNEL(over_norm)(GK_IN(gk_t, x), GK_IN(gk_f, part), GK_OUT(gk_t, y), gk_i64 n, gk_i64 chunk, gk_i64 splits, gk_i64 work, gk_f eps)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_f, part); GK_BIND_OUT(gk_t, y);
    for (gk_i64 w = gk_bid(0); w < work; w += gk_nblocks(0)) {
        gk_i64 m = w / splits, from = w % splits * chunk, to = from + chunk < n ? from + chunk : n;
        gk_f sum = GK_R(0.0);
        for (gk_i64 s = 0; s < splits; s++) sum += part[m * splits + s];
        sum = gk_sqrt(sum) + eps;
        for (gk_i64 i = from + gk_lid(); i < to; i += GK_BLOCK) gk_store(y, m * n + i, gk_load(x, m * n + i) / sum);
    }
}
