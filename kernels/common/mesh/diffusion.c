/* Heat diffusion on a surface (Sharp et al., 2022: DiffusionNet).
 *
 * With eigenvectors the products with them are matrix products; here is what happens between: a component k of scale s decays by exp(-lam[k] t[s]).
 * Without them, exp(-t L) x is summed up by a scaled Taylor series: q = max(1, ceil(|t| |L|_1)) steps of degree 12, exact to about 1e-9 each.
 * t holds one time per scale, or one per scale and channel. Columns of scale s and channel c: s * C + c. Sums in gk_f, fixed order, deterministic.
 */
#define GK_TERMS 12
#define GK_COLS 4
#define GK_MAX_STEPS 65536

// Units: REALS
/* out[r, s*C + c] = exp(-lam[r mod K] t) x[r, c] of rows r = (batch, component). Launch: grid-stride over rows * S * C. */
GK_KERNEL(diffusion_spread)(GK_IN(gk_t, x), GK_IN(gk_t, lam), GK_IN(gk_t, t), GK_OUT(gk_t, out), gk_i64 n, gk_i64 comps, int scales, int channels,
                            int per_channel)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, lam); GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, out);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 sc = (gk_i64)scales * channels, r = i / sc, s = (i - r * sc) / channels, c = i - r * sc - s * channels;
        gk_f time = gk_load(t, per_channel ? s * channels + c : s);
        gk_store(out, i, gk_exp(-gk_load(lam, r % comps) * time) * gk_load(x, r * channels + c));
    }
}

/* y[r, c] (+)= sum over s of d[r, s*C + c], each decayed as above where lam is given. Launch: grid-stride over rows * C. */
GK_KERNEL(diffusion_fold)(GK_IN(gk_t, d), GK_IN(gk_t, lam), GK_IN(gk_t, t), GK_OUT(gk_t, y), gk_i64 n, gk_i64 comps, int scales, int channels,
                          int per_channel, int accumulate)
{
    GK_BIND_IN(gk_t, d); GK_BIND_IN(gk_t, lam); GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, y);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_i64 r = i / channels, c = i - r * channels;
        gk_f sum = GK_R(0.0);
        for (int s = 0; s < scales; s++) {
            gk_f v = gk_load(d, (r * scales + s) * channels + c);
            if (lam) v = v * gk_exp(-gk_load(lam, r % comps) * gk_load(t, per_channel ? s * channels + c : s));
            sum += v;
        }
        gk_store(y, i, accumulate ? gk_load(y, i) + sum : sum);
    }
}

/* dt (+)= - sum over rows (and channels, unless t has them) of w[r mod K] p[r, s*C + c] q[r, s*C + c], w = lam or 1. Launch: one block per time. */
GK_KERNEL(diffusion_times)(GK_IN(gk_t, p), GK_IN(gk_t, q), GK_IN(gk_t, lam), GK_OUT(gk_t, dt), gk_i64 rows, gk_i64 comps, int scales, int channels,
                           int per_channel, int accumulate)
{
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, q); GK_BIND_IN(gk_t, lam); GK_BIND_OUT(gk_t, dt);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 sc = (gk_i64)scales * channels, span = per_channel ? 1 : channels;
    for (gk_i64 i = gk_bid(0); i < sc / span; i += gk_nblocks(0)) {
        gk_f sum = GK_R(0.0);
        for (gk_i64 j = gk_lid(); j < rows * span; j += GK_BLOCK) {
            gk_i64 r = j / span, at = r * sc + i * span + j - r * span;
            gk_f v = gk_load(p, at) * gk_load(q, at);
            if (lam) v = v * gk_load(lam, r % comps);
            sum += v;
        }
        sum = -gk_block_sum(sum, tmp);
        if (gk_lid() == 0) gk_store(dt, i, accumulate ? gk_load(dt, i) + sum : sum);
    }
}

/* out[b, :, s*C + c] = exp(-t L) x[b, :, c or s*C + c] with L = M^T for a matrix M [V, V], so that its rows are read in order across threads.
 * The number of steps comes from |L|_inf, the largest sum of magnitudes of a column of M; times that need more than GK_MAX_STEPS give NaN.
 * room [blocks, 3, V, GK_COLS] holds the last term, the next one and their sum.
 * Launch: one block per scale (axis 0), GK_COLS channels (axis 1) and batch (axis 2). */
GK_KERNEL(diffusion_flow)(GK_IN(gk_t, m), GK_IN(gk_t, x), GK_IN(gk_t, t), GK_OUT(gk_t, out), GK_OUT(gk_f, room), gk_i64 nodes, int scales,
                          int channels, int per_channel, int x_has_scales)
{
    GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, t); GK_BIND_OUT(gk_t, out); GK_BIND_OUT(gk_f, room);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    int id = gk_lid(), s = gk_bid(0), first = gk_bid(1) * GK_COLS, steps = 1;
    gk_i64 block = ((gk_i64)gk_bid(2) * gk_nblocks(1) + gk_bid(1)) * gk_nblocks(0) + gk_bid(0), sc = (gk_i64)scales * channels;
    GK_GLOBAL gk_f* last = room + block * 3 * nodes * GK_COLS;
    GK_GLOBAL gk_f* next = last + nodes * GK_COLS;
    GK_GLOBAL gk_f* sum = next + nodes * GK_COLS;
    gk_f norm = GK_R(0.0), most = GK_R(0.0), time[GK_COLS];
    for (gk_i64 c = id; c < nodes; c += GK_BLOCK) {
        gk_f a = GK_R(0.0);
        for (gk_i64 r = 0; r < nodes; r++) a += gk_fabs(gk_load(m, r * nodes + c));
        norm = gk_max(norm, a);
    }
    norm = gk_block_max(norm, tmp);
    GK_UNROLL for (int k = 0; k < GK_COLS; k++) {
        time[k] = GK_R(0.0);
        if (first + k < channels) time[k] = gk_load(t, per_channel ? (gk_i64)s * channels + first + k : s);
        most = gk_max(most, gk_fabs(time[k]));
    }
    most = gk_ceil(most * norm);
    int fits = most <= (gk_f)GK_MAX_STEPS;
    if (fits && most > GK_R(1.0)) steps = (int)most;
    if (!fits) steps = 0;
    GK_UNROLL for (int k = 0; k < GK_COLS; k++) time[k] = -time[k] / (gk_f)(steps > 0 ? steps : 1);
    for (gk_i64 i = id; i < nodes; i += GK_BLOCK) {
        gk_i64 row = (gk_i64)gk_bid(2) * nodes + i;
        GK_UNROLL for (int k = 0; k < GK_COLS; k++) {
            gk_f h = GK_R(0.0);
            if (first + k < channels) h = gk_load(x, x_has_scales ? row * sc + (gk_i64)s * channels + first + k : row * channels + first + k);
            if (!fits) h = GK_NAN;
            last[i * GK_COLS + k] = h;
            sum[i * GK_COLS + k] = h;
        }
    }
    GK_BARRIER();
    for (int step = 0; step < steps; step++) {
        for (int n = 1; n <= GK_TERMS; n++) {
            for (gk_i64 i = id; i < nodes; i += GK_BLOCK) {
                gk_f acc[GK_COLS];
                GK_UNROLL for (int k = 0; k < GK_COLS; k++) acc[k] = GK_R(0.0);
                for (gk_i64 j = 0; j < nodes; j++) {
                    gk_f l = gk_load(m, j * nodes + i);
                    GK_UNROLL for (int k = 0; k < GK_COLS; k++) acc[k] += l * last[j * GK_COLS + k];
                }
                GK_UNROLL for (int k = 0; k < GK_COLS; k++) {
                    gk_f v = time[k] / (gk_f)n * acc[k];
                    next[i * GK_COLS + k] = v;
                    sum[i * GK_COLS + k] += v;
                }
            }
            GK_BARRIER();
            GK_GLOBAL gk_f* was = last;
            last = next;
            next = was;
        }
        for (gk_i64 i = id; i < nodes * GK_COLS; i += GK_BLOCK) last[i] = sum[i];
        GK_BARRIER();
    }
    for (gk_i64 i = id; i < nodes; i += GK_BLOCK) {
        GK_UNROLL for (int k = 0; k < GK_COLS; k++) {
            if (first + k < channels) gk_store(out, ((gk_i64)gk_bid(2) * nodes + i) * sc + (gk_i64)s * channels + first + k, sum[i * GK_COLS + k]);
        }
    }
}
