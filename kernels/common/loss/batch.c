/* Losses of a whole batch: contrastive (NT-Xent, InfoNCE, supervised), redundancy reduction, ranking, load balance, Lovasz.
 *
 * No similarity matrix is stored; similarities are computed where they are needed. All sums run in a fixed order per block: results repeat bit
 * by bit. Arithmetic in gk_f. References: Chen et al. (2020), van den Oord et al. (2018), Khosla et al. (2020), Zbontar et al. (2021), Burges
 * et al. (2005), Fedus et al. (2022), Berman et al. (2018).
 */

#define GK_UPSTREAM (gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0))

// Units: FLOATS64
/* Row i of z as row at + i of packed, divided by its norm (at least 1e-12) where normalize is set. A block per row. */
GK_KERNEL(batch_pack)(GK_IN(gk_t, z), gk_i64 rows, gk_i64 E, gk_i64 at, int normalize, GK_OUT(gk_f, packed), GK_OUT(gk_f, norm))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, z); GK_BIND_OUT(gk_f, packed); GK_BIND_OUT(gk_f, norm);
    for (gk_i64 i = gk_bid(0); i < rows; i += gk_nblocks(0)) {
        gk_f s = GK_R(0.0);
        for (gk_i64 e = gk_lid(); e < E; e += GK_BLOCK) { gk_f v = gk_load(z, i * E + e); s += v * v; }
        s = gk_max(gk_sqrt(gk_block_sum(s, tmp)), GK_R(1e-12));
        if (!normalize) s = GK_R(1.0);
        for (gk_i64 e = gk_lid(); e < E; e += GK_BLOCK) packed[(at + i) * E + e] = gk_load(z, i * E + e) / s;
        if (gk_lid() == 0) norm[at + i] = s;
    }
}

/* Gradient of packed rows back to dz. A block per row. */
GK_KERNEL(batch_unpack)(GK_IN(gk_f, grad), GK_IN(gk_f, packed), GK_IN(gk_f, norm), gk_i64 rows, gk_i64 E, gk_i64 at, int normalize, GK_OUT(gk_t, dz),
                        int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, grad); GK_BIND_IN(gk_f, packed); GK_BIND_IN(gk_f, norm); GK_BIND_OUT(gk_t, dz);
    for (gk_i64 i = gk_bid(0); i < rows; i += gk_nblocks(0)) {
        gk_i64 base = (at + i) * E;
        gk_f s = GK_R(0.0);
        for (gk_i64 e = gk_lid(); e < E; e += GK_BLOCK) s += grad[base + e] * packed[base + e];
        s = gk_block_sum(s, tmp);
        if (!normalize) s = GK_R(0.0);
        for (gk_i64 e = gk_lid(); e < E; e += GK_BLOCK) {
            gk_f v = (grad[base + e] - s * packed[base + e]) / norm[at + i];
            gk_store(dz, i * E + e, accumulate ? gk_load(dz, i * E + e) + v : v);
        }
    }
}

/* Which pairs (query i, key j) take part and which are positive. mode 0: two views stacked, B rows each; 1: keys of the batch; 2: the own key
 * among B, then negatives; 3: labels. */
#define GK_TAKES_PART(i, j) (mode == 0 || mode == 3 ? (i) != (j) : mode == 1 || (i) == (j) || (j) >= B)
#define GK_IS_POSITIVE(i, j) \
    (mode == 0 ? (j) == ((i) + B) % (2 * B) : mode == 3 ? (i) != (j) && gk_index(ids, i, wide) == gk_index(ids, j, wide) : (i) == (j))

GK_FN gk_f gk_similarity(GK_GLOBAL const gk_f* q, GK_GLOBAL const gk_f* k, gk_i64 i, gk_i64 j, gk_i64 E)
{
    gk_f s = GK_R(0.0);
    for (gk_i64 e = 0; e < E; e++) s += q[i * E + e] * k[j * E + e];
    return s;
}

/* lse, count of positives, item and weight (0 without positives) of every query. A block per query. */
GK_KERNEL(contrast_rows)(GK_IN(gk_f, q), GK_IN(gk_f, k), GK_IN(int, ids), int wide, gk_i64 N, gk_i64 M, gk_i64 B, gk_i64 E, int mode, gk_f scale,
                         GK_OUT(gk_f, lse), GK_OUT(gk_f, positives), GK_OUT(gk_f, item), GK_OUT(gk_f, weight))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, q); GK_BIND_IN(gk_f, k); GK_BIND_IN(int, ids); GK_BIND_OUT(gk_f, lse); GK_BIND_OUT(gk_f, positives); GK_BIND_OUT(gk_f, item);
    GK_BIND_OUT(gk_f, weight);
    for (gk_i64 i = gk_bid(0); i < N; i += gk_nblocks(0)) {
        gk_f m = -GK_INF, s = GK_R(0.0), sum = GK_R(0.0), count = GK_R(0.0);
        for (gk_i64 j = gk_lid(); j < M; j += GK_BLOCK) {
            if (GK_TAKES_PART(i, j)) {
                gk_f v = scale * gk_similarity(q, k, i, j, E);
                if (v > m) { s = s * gk_exp(m - v) + GK_R(1.0); m = v; }
                else s += gk_exp(v - m);
                if (GK_IS_POSITIVE(i, j)) { sum += v; count += GK_R(1.0); }
            }
        }
        gk_f top = gk_block_max(m, tmp);
        s = gk_block_sum(s > GK_R(0.0) || gk_isnan(s) ? s * gk_exp(m - top) : GK_R(0.0), tmp);
        sum = gk_block_sum(sum, tmp);
        count = gk_block_sum(count, tmp);
        if (gk_lid() == 0) {
            gk_f l = top + gk_log(s);
            lse[i] = l;
            positives[i] = count;
            item[i] = count > GK_R(0.0) ? l - sum / count : GK_R(0.0);
            weight[i] = count > GK_R(0.0) ? GK_R(1.0) : GK_R(0.0);
        }
    }
}

/* Gradient of the queries (keys = 0) or the keys (keys = 1): out (+)= sum over the other side of coefficient * row. A block per row of out;
 * coefficients of 256 pairs at a time are shared by the block. */
GK_KERNEL(contrast_grad)(GK_IN(gk_f, q), GK_IN(gk_f, k), GK_IN(int, ids), int wide, gk_i64 N, gk_i64 M, gk_i64 B, gk_i64 E, int mode, gk_f scale,
                         GK_IN(gk_f, lse), GK_IN(gk_f, positives), GK_IN(gk_t, gy), int gy_f32, GK_IN(gk_f, den), int keys, int accumulate,
                         GK_OUT(gk_f, out))
{
    GK_LOCAL gk_f coefficient[GK_BLOCK];
    GK_BIND_IN(gk_f, q); GK_BIND_IN(gk_f, k); GK_BIND_IN(int, ids); GK_BIND_IN(gk_f, lse); GK_BIND_IN(gk_f, positives); GK_BIND_IN(gk_t, gy);
    GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_f, out);
    gk_f g = GK_UPSTREAM / den[0] * scale;
    gk_i64 rows = keys ? M : N, others = keys ? N : M;
    GK_GLOBAL const gk_f* other = keys ? q : k;
    for (gk_i64 row = gk_bid(0); row < rows; row += gk_nblocks(0)) {
        for (gk_i64 first = 0; first < E; first += GK_BLOCK) {
            gk_i64 e = first + gk_lid();
            gk_f sum = GK_R(0.0);
            for (gk_i64 base = 0; base < others; base += GK_BLOCK) {
                gk_i64 o = base + gk_lid(), i = keys ? o : row, j = keys ? row : o;
                gk_f c = GK_R(0.0);
                if (o < others) {
                    if (positives[i] > GK_R(0.0) && GK_TAKES_PART(i, j)) {
                        c = gk_exp(scale * gk_similarity(q, k, i, j, E) - lse[i]);
                        if (GK_IS_POSITIVE(i, j)) c -= GK_R(1.0) / positives[i];
                    }
                }
                coefficient[gk_lid()] = c;
                GK_BARRIER();
                if (e < E) for (gk_i64 n = 0; n < GK_BLOCK && base + n < others; n++) sum += coefficient[n] * other[(base + n) * E + e];
                GK_BARRIER();
            }
            if (e < E) out[row * E + e] = accumulate ? out[row * E + e] + g * sum : g * sum;
        }
    }
}

/* ---- Barlow twins: mean, 1 / standard deviation of every column; a block per column ---------------------------------------------- */
GK_KERNEL(barlow_stats)(GK_IN(gk_t, z), gk_i64 B, gk_i64 E, GK_OUT(gk_f, mean), GK_OUT(gk_f, rstd))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, z); GK_BIND_OUT(gk_f, mean); GK_BIND_OUT(gk_f, rstd);
    for (gk_i64 e = gk_bid(0); e < E; e += gk_nblocks(0)) {
        gk_f s = GK_R(0.0), v = GK_R(0.0);
        for (gk_i64 b = gk_lid(); b < B; b += GK_BLOCK) s += gk_load(z, b * E + e);
        s = gk_block_sum(s, tmp) / (gk_f)B;
        for (gk_i64 b = gk_lid(); b < B; b += GK_BLOCK) { gk_f x = gk_load(z, b * E + e) - s; v += x * x; }
        v = gk_block_sum(v, tmp) / (gk_f)B;
        if (gk_lid() == 0) { mean[e] = s; rstd[e] = GK_R(1.0) / gk_sqrt(v); }
    }
}

/* Element (i, j) of the cross-correlation, its term of the loss (item, weight 1) and the term's derivative. */
GK_KERNEL(barlow_matrix)(GK_IN(gk_t, z1), GK_IN(gk_t, z2), GK_IN(gk_f, mean1), GK_IN(gk_f, rstd1), GK_IN(gk_f, mean2), GK_IN(gk_f, rstd2), gk_i64 B,
                         gk_i64 E, gk_f lambda, GK_OUT(gk_f, slope), GK_OUT(gk_f, item), GK_OUT(gk_f, weight))
{
    GK_BIND_IN(gk_t, z1); GK_BIND_IN(gk_t, z2); GK_BIND_IN(gk_f, mean1); GK_BIND_IN(gk_f, rstd1); GK_BIND_IN(gk_f, mean2); GK_BIND_IN(gk_f, rstd2);
    GK_BIND_OUT(gk_f, slope); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    for (gk_i64 n = gk_gid(); n < E * E; n += gk_gsize()) {
        gk_i64 i = n / E, j = n - i * E;
        gk_f c = GK_R(0.0);
        for (gk_i64 b = 0; b < B; b++) c += (gk_load(z1, b * E + i) - mean1[i]) * (gk_load(z2, b * E + j) - mean2[j]);
        c *= rstd1[i] * rstd2[j] / (gk_f)B;
        slope[n] = i == j ? GK_R(-2.0) * (GK_R(1.0) - c) : GK_R(2.0) * lambda * c;
        item[n] = i == j ? (GK_R(1.0) - c) * (GK_R(1.0) - c) : lambda * c * c;
        weight[n] = GK_R(1.0);
    }
}

/* Gradient of the standardised z (second = 1: of z2) from that of the matrix: grad [B, E]. */
GK_KERNEL(barlow_rows)(GK_IN(gk_f, slope), GK_IN(gk_t, other), GK_IN(gk_f, mean), GK_IN(gk_f, rstd), gk_i64 B, gk_i64 E, int second,
                       GK_OUT(gk_f, grad))
{
    GK_BIND_IN(gk_f, slope); GK_BIND_IN(gk_t, other); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_OUT(gk_f, grad);
    for (gk_i64 n = gk_gid(); n < B * E; n += gk_gsize()) {
        gk_i64 b = n / E, i = n - b * E;
        gk_f s = GK_R(0.0);
        for (gk_i64 j = 0; j < E; j++) s += slope[second ? j * E + i : i * E + j] * (gk_load(other, b * E + j) - mean[j]) * rstd[j];
        grad[n] = s / (gk_f)B;
    }
}

/* dz (+)= gy * gradient through the standardisation. A block per column. */
GK_KERNEL(barlow_columns)(GK_IN(gk_t, z), GK_IN(gk_f, mean), GK_IN(gk_f, rstd), GK_IN(gk_f, grad), gk_i64 B, gk_i64 E, GK_IN(gk_t, gy), int gy_f32,
                          GK_OUT(gk_t, dz), int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_f, mean); GK_BIND_IN(gk_f, rstd); GK_BIND_IN(gk_f, grad); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dz);
    gk_f g = GK_UPSTREAM;
    for (gk_i64 e = gk_bid(0); e < E; e += gk_nblocks(0)) {
        gk_f s = GK_R(0.0), v = GK_R(0.0);
        for (gk_i64 b = gk_lid(); b < B; b += GK_BLOCK) {
            s += grad[b * E + e];
            v += grad[b * E + e] * (gk_load(z, b * E + e) - mean[e]) * rstd[e];
        }
        s = gk_block_sum(s, tmp) / (gk_f)B;
        v = gk_block_sum(v, tmp) / (gk_f)B;
        for (gk_i64 b = gk_lid(); b < B; b += GK_BLOCK) {
            gk_i64 at = b * E + e;
            gk_f d = g * rstd[e] * (grad[at] - s - v * (gk_load(z, at) - mean[e]) * rstd[e]);
            gk_store(dz, at, accumulate ? gk_load(dz, at) + d : d);
        }
    }
}

/* ---- ranking: pairs with rel_i > rel_j, ln(1 + e^(s_j - s_i)); a block per i ------------------------------------------------------ */
GK_FN gk_f gk_pair_loss(gk_f d) { return (d > GK_R(0.0) ? d : GK_R(0.0)) + gk_log1p(gk_exp(-gk_fabs(d))); }
GK_FN gk_f gk_pair_slope(gk_f d) { return GK_R(1.0) / (GK_R(1.0) + gk_exp(-d)); }
GK_KERNEL(rank_items)(GK_IN(gk_t, s), GK_IN(gk_t, rel), gk_i64 n, GK_OUT(gk_f, item), GK_OUT(gk_f, weight))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, s); GK_BIND_IN(gk_t, rel); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    for (gk_i64 i = gk_bid(0); i < n; i += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0), count = GK_R(0.0), si = gk_load(s, i), ri = gk_load(rel, i);
        for (gk_i64 j = gk_lid(); j < n; j += GK_BLOCK)
            if (ri > gk_load(rel, j)) { sum += gk_pair_loss(gk_load(s, j) - si); count += GK_R(1.0); }
        sum = gk_block_sum(sum, tmp);
        count = gk_block_sum(count, tmp);
        if (gk_lid() == 0) { item[i] = sum; weight[i] = count; }
    }
}
GK_KERNEL(rank_grad)(GK_IN(gk_t, s), GK_IN(gk_t, rel), gk_i64 n, GK_IN(gk_t, gy), int gy_f32, GK_IN(gk_f, den), GK_OUT(gk_t, ds), int accumulate)
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, s); GK_BIND_IN(gk_t, rel); GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, ds);
    gk_f g = GK_UPSTREAM / gk_max(den[0], GK_R(1.0));
    for (gk_i64 i = gk_bid(0); i < n; i += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0), si = gk_load(s, i), ri = gk_load(rel, i);
        for (gk_i64 j = gk_lid(); j < n; j += GK_BLOCK) {
            gk_f d = gk_load(s, j) - si, rj = gk_load(rel, j);
            if (ri > rj) sum -= gk_pair_slope(d);
            if (rj > ri) sum += gk_pair_slope(-d);
        }
        sum = gk_block_sum(sum, tmp);
        if (gk_lid() == 0) gk_store(ds, i, accumulate ? gk_load(ds, i) + g * sum : g * sum);
    }
}

/* ---- load balance: E share_e mean_e; a block per expert ---------------------------------------------------------------------------- */
GK_KERNEL(balance_items)(GK_IN(gk_t, probs), GK_IN(int, ids), int wide, GK_OUT(int, err), int code, gk_i64 N, gk_i64 E, gk_i64 count,
                         GK_OUT(gk_f, share), GK_OUT(gk_f, item), GK_OUT(gk_f, weight))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, probs); GK_BIND_IN(int, ids); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, share); GK_BIND_OUT(gk_f, item);
    GK_BIND_OUT(gk_f, weight);
    for (gk_i64 e = gk_bid(0); e < E; e += gk_nblocks(0)) {
        gk_f hits = GK_R(0.0), sum = GK_R(0.0);
        for (gk_i64 i = gk_lid(); i < count; i += GK_BLOCK) {
            gk_i64 id = gk_index(ids, i, wide);
            if (id < 0 || id >= E) gk_report(err, code);
            if (id == e) hits += GK_R(1.0);
        }
        for (gk_i64 n = gk_lid(); n < N; n += GK_BLOCK) sum += gk_load(probs, n * E + e);
        hits = gk_block_sum(hits, tmp) / (gk_f)count;
        sum = gk_block_sum(sum, tmp) / (gk_f)N;
        if (gk_lid() == 0) { share[e] = hits; item[e] = (gk_f)E * hits * sum; weight[e] = GK_R(1.0); }
    }
}
GK_KERNEL(balance_grad)(GK_IN(gk_f, share), gk_i64 N, gk_i64 E, GK_IN(gk_t, gy), int gy_f32, GK_OUT(gk_t, dp), int accumulate)
{
    GK_BIND_IN(gk_f, share); GK_BIND_IN(gk_t, gy); GK_BIND_OUT(gk_t, dp);
    gk_f g = GK_UPSTREAM * (gk_f)E / (gk_f)N;
    for (gk_i64 i = gk_gid(); i < N * E; i += gk_gsize()) {
        gk_f d = g * share[i % E];
        gk_store(dp, i, accumulate ? gk_load(dp, i) + d : d);
    }
}

/* ---- Lovasz-softmax: the place of an error among its class's sorted errors is counted, not sorted ---------------------------------- */
#define GK_ERROR(i) gk_fabs((gk_index(ids, i, wide) == c ? GK_R(1.0) : GK_R(0.0)) - gk_load(p, (i) * C + c))
/* slope [N, C]: step of the Jaccard loss at the place of error (i, c); 0 for classes without a member. */
GK_KERNEL(lovasz_slope)(GK_IN(gk_t, p), GK_IN(int, ids), int wide, GK_OUT(int, err), int code, gk_i64 N, gk_i64 C, GK_OUT(gk_f, slope))
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(int, ids); GK_BIND_OUT(int, err); GK_BIND_OUT(gk_f, slope);
    for (gk_i64 n = gk_gid(); n < N * C; n += gk_gsize()) {
        gk_i64 i = n / C, c = n - i * C, members = 0, before = 0, found = 0, own = gk_index(ids, i, wide);
        if (own < 0 || own >= C) gk_report(err, code);
        gk_f e = GK_ERROR(i);
        for (gk_i64 j = 0; j < N; j++) {
            int member = gk_index(ids, j, wide) == c;
            gk_f other = GK_ERROR(j);
            members += member;
            if (other > e || (other == e && j < i)) { before++; found += member; }
        }
        /* Intersection and union before and after this error. */
        gk_f a0 = (gk_f)(members - found), u0 = (gk_f)(members + before - found);
        gk_f a1 = a0 - (own == c ? GK_R(1.0) : GK_R(0.0)), u1 = u0 + (own == c ? GK_R(0.0) : GK_R(1.0));
        gk_f step = (before ? a0 / u0 : GK_R(1.0)) - a1 / u1;
        slope[n] = members ? step : GK_R(0.0);
    }
}
/* Sum of a class's errors times their slopes, weight 1 for classes with a member. A block per class. */
GK_KERNEL(lovasz_items)(GK_IN(gk_t, p), GK_IN(int, ids), int wide, gk_i64 N, gk_i64 C, GK_IN(gk_f, slope), GK_OUT(gk_f, item), GK_OUT(gk_f, weight))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(int, ids); GK_BIND_IN(gk_f, slope); GK_BIND_OUT(gk_f, item); GK_BIND_OUT(gk_f, weight);
    for (gk_i64 c = gk_bid(0); c < C; c += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0), members = GK_R(0.0);
        for (gk_i64 i = gk_lid(); i < N; i += GK_BLOCK) {
            sum += GK_ERROR(i) * slope[i * C + c];
            if (gk_index(ids, i, wide) == c) members += GK_R(1.0);
        }
        sum = gk_block_sum(sum, tmp);
        members = gk_block_sum(members, tmp);
        if (gk_lid() == 0) { item[c] = sum; weight[c] = members > GK_R(0.0) ? GK_R(1.0) : GK_R(0.0); }
    }
}
GK_KERNEL(lovasz_grad)(GK_IN(gk_t, p), GK_IN(int, ids), int wide, gk_i64 N, gk_i64 C, GK_IN(gk_f, slope), GK_IN(gk_t, gy), int gy_f32,
                       GK_IN(gk_f, den), GK_OUT(gk_t, dp), int accumulate)
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(int, ids); GK_BIND_IN(gk_f, slope); GK_BIND_IN(gk_t, gy); GK_BIND_IN(gk_f, den); GK_BIND_OUT(gk_t, dp);
    gk_f g = GK_UPSTREAM / den[0];
    for (gk_i64 n = gk_gid(); n < N * C; n += gk_gsize()) {
        gk_i64 i = n / C, c = n - i * C;
        gk_f x = gk_load(p, n) - (gk_index(ids, i, wide) == c ? GK_R(1.0) : GK_R(0.0));
        gk_f d = x > GK_R(0.0) ? g * slope[n] : x < GK_R(0.0) ? -g * slope[n] : GK_R(0.0);
        gk_store(dp, n, accumulate ? gk_load(dp, n) + d : d);
    }
}
