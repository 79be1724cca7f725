/* The order of assignments by expert: counts, offsets and a stable permutation. ids [n] hold experts 0 ... E - 1. One writer per element. */

#define GK_MOE_EACH 16 /* neighbouring ids of a thread per step */
/* Place of an id of a step in local memory: threads that read each their own have no bank conflicts. */
#define GK_MOE_AT(i) ((i) + (i) / GK_MOE_EACH)

/* The thread's ids of the step from i0 on, -1 where there are none, by coalesced loads through local memory. */
GK_FN void gk_moe_ids(int* v, GK_GLOBAL const int* ids, gk_i64 i0, gk_i64 n, GK_LOCAL_PTR int* room)
{
    GK_BARRIER();
    GK_UNROLL for (int u = 0; u < GK_MOE_EACH; u++) {
        int i = u * GK_BLOCK + gk_lid(), id = -1;
        if (i0 + i < n) id = ids[i0 + i];
        room[GK_MOE_AT(i)] = id;
    }
    GK_BARRIER();
    GK_UNROLL for (int u = 0; u < GK_MOE_EACH; u++) v[u] = room[GK_MOE_AT(gk_lid() * GK_MOE_EACH) + u];
}

// Units: I32
/* counts[e] = number of ids that are e, offsets[e] = sum of the counts before e, perm[offsets[e] ...] = the i with ids[i] = e, rising, and if not
 * null inverse[perm[i]] = i. A block finds itself how many ids come before its expert's. Launch: one block per expert, looping. */
GK_KERNEL(moe_order)(GK_IN(int, ids), GK_OUT(int, counts), GK_OUT(int, offsets), GK_OUT(int, perm), GK_OUT(int, inverse), gk_i64 n, int experts)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_LOCAL gk_u32 scan[GK_BLOCK];
    GK_LOCAL int room[GK_MOE_AT(GK_BLOCK * GK_MOE_EACH)];
    GK_BIND_IN(int, ids); GK_BIND_OUT(int, counts); GK_BIND_OUT(int, offsets); GK_BIND_OUT(int, perm); GK_BIND_OUT(int, inverse);
    for (int e = gk_bid(0); e < experts; e += gk_nblocks(0)) {
        int v[GK_MOE_EACH], before = 0, own = 0;
        for (gk_i64 i0 = 0; i0 < n; i0 += GK_BLOCK * GK_MOE_EACH) {
            gk_moe_ids(v, ids, i0, n, room);
            GK_UNROLL for (int u = 0; u < GK_MOE_EACH; u++) {
                before += v[u] >= 0 && v[u] < e;
                own += v[u] == e;
            }
        }
        before = gk_block_sum(before, tmp);
        own = gk_block_sum(own, tmp);
        if (gk_lid() == 0) {
            counts[e] = own;
            offsets[e] = before;
            if (e == experts - 1) offsets[experts] = before + own;
        }
        gk_i64 base = before;
        for (gk_i64 i0 = 0; i0 < n; i0 += GK_BLOCK * GK_MOE_EACH) {
            gk_i64 first = i0 + gk_lid() * GK_MOE_EACH;
            gk_u32 c = 0u, total;
            gk_moe_ids(v, ids, i0, n, room);
            GK_UNROLL for (int u = 0; u < GK_MOE_EACH; u++) c += (gk_u32)(v[u] == e);
            gk_i64 at = base + (gk_i64)gk_block_scan(c, scan, &total) - (gk_i64)c;
            GK_UNROLL for (int u = 0; u < GK_MOE_EACH; u++) {
                if (v[u] != e) continue;
                perm[at] = (int)(first + u);
                if (inverse) inverse[first + u] = (int)at;
                at++;
            }
            base += total;
        }
    }
}

/* inverse[perm[i]] = i; an assignment out of range is reported. Assignments that perm does not have keep what was there. Launch: grid-stride. */
GK_KERNEL(moe_inverse)(GK_IN(int, perm), GK_OUT(int, inverse), GK_OUT(int, err), gk_i64 n, int code)
{
    GK_BIND_IN(int, perm); GK_BIND_OUT(int, inverse); GK_BIND_OUT(int, err);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int a = perm[i];
        if (a >= 0 && a < n) inverse[a] = (int)i;
        else gk_report(err, code);
    }
}
