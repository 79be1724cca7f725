/* The order of assignments by expert: counts, offsets and a stable permutation. ids [n] hold experts 0 ... E - 1. One writer per element. */

#define GK_MOE_EACH 16 /* ids of a thread per step */

// Units: I32
/* counts[e] = number of ids that are e. Launch: one block per expert, looping. */
GK_KERNEL(moe_count)(GK_IN(int, ids), GK_OUT(int, counts), gk_i64 n, int experts)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(int, ids); GK_BIND_OUT(int, counts);
    for (int e = gk_bid(0); e < experts; e += gk_nblocks(0)) {
        int c = 0;
        for (gk_i64 i = gk_lid(); i < n; i += GK_BLOCK) c += ids[i] == e;
        c = gk_block_sum(c, tmp);
        if (gk_lid() == 0) counts[e] = c;
    }
}

/* offsets[e] = sum of the counts before e. Launch: one block. */
GK_KERNEL(moe_offsets)(GK_IN(int, counts), GK_OUT(int, offsets), int experts)
{
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_BIND_IN(int, counts); GK_BIND_OUT(int, offsets);
    gk_u32 base = 0u, total;
    if (gk_lid() == 0) offsets[0] = 0;
    for (int e0 = 0; e0 < experts; e0 += GK_BLOCK) {
        int e = e0 + gk_lid();
        gk_u32 c = 0u;
        if (e < experts) c = (gk_u32)counts[e];
        c = gk_block_scan(c, tmp, &total);
        if (e < experts) offsets[e + 1] = (int)(base + c);
        base += total;
    }
}

/* perm[offsets[e] ...] = the i with ids[i] = e, rising. Launch: one block per expert, looping. */
GK_KERNEL(moe_order)(GK_IN(int, ids), GK_IN(int, offsets), GK_OUT(int, perm), gk_i64 n, int experts)
{
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_BIND_IN(int, ids); GK_BIND_IN(int, offsets); GK_BIND_OUT(int, perm);
    for (int e = gk_bid(0); e < experts; e += gk_nblocks(0)) {
        gk_i64 base = offsets[e];
        for (gk_i64 i0 = 0; i0 < n; i0 += GK_BLOCK * GK_MOE_EACH) {
            gk_i64 first = i0 + gk_lid() * GK_MOE_EACH;
            gk_u32 c = 0u, total;
            for (int u = 0; u < GK_MOE_EACH; u++)
                if (first + u < n && ids[first + u] == e) c++;
            gk_i64 at = base + (gk_i64)gk_block_scan(c, tmp, &total) - (gk_i64)c;
            for (int u = 0; u < GK_MOE_EACH; u++)
                if (first + u < n && ids[first + u] == e) perm[at++] = (int)(first + u);
            base += total;
        }
    }
}

/* inverse[perm[i]] = i; an assignment out of range is reported. Launch: grid-stride. inverse holds -1 before. */
GK_KERNEL(moe_inverse)(GK_IN(int, perm), GK_OUT(int, inverse), GK_OUT(int, err), gk_i64 n, int code)
{
    GK_BIND_IN(int, perm); GK_BIND_OUT(int, inverse); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int a = perm[i];
        if (a >= 0 && a < n) inverse[a] = (int)i;
        else gk_report(err, code);
    }
}
