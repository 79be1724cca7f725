/* Sums over the block in 64 bits; tmp is a GK_LOCAL array of GK_BLOCK gk_i64. All threads take part. */

/* Inclusive sum; `total` is that of all. */
GK_FN gk_i64 gk_scan64(gk_i64 v, GK_LOCAL_PTR gk_i64* tmp, gk_i64* total)
{
    int t = gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = 1; m < GK_BLOCK; m <<= 1) {
        gk_i64 add = t >= m ? tmp[t - m] : 0;
        GK_BARRIER();
        tmp[t] += add;
        GK_BARRIER();
    }
    v = tmp[t];
    *total = tmp[GK_BLOCK - 1];
    GK_BARRIER();
    return v;
}

/* Sum of the first `blocks` entries of a list, as every thread's result: what precedes block number `blocks`. */
GK_FN gk_i64 gk_sum_before(GK_GLOBAL const gk_i64* partial, int blocks, GK_LOCAL_PTR gk_i64* tmp)
{
    gk_i64 sum = 0, total;
    for (int g = gk_lid(); g < blocks; g += GK_BLOCK) sum += partial[g];
    gk_scan64(sum, tmp, &total);
    return total;
}
