/* Prefix sums along an axis of [outer, size, inner], inclusive or exclusive, from the front or from the back.
 *
 *   y[k] = sum of x[j] over j <= k (exclusive: j < k; reverse: j >= k, j > k)
 *
 * Floats are summed in gk_f, integers in 64 bits, wrapping. A position of the scan is counted from where it starts: `reverse` only mirrors
 * addresses. An exclusive sum is the running sum before its element, never a difference, so infinities and NaN only reach what follows them.
 * Long axes are cut into chunks: scan_partial and scan_partial_columns write the chunks' sums, and the scan of a chunk starts from the sum of those
 * before it. `mode`: floats 1 = y += result, integers 1 = y is i64.
 * Deterministic: the order of additions depends on sizes alone. Reference: torch.cumsum.
 */
#if GK_IS_FLOAT
typedef gk_f gk_s;
#define gk_summand(x) (x)
GK_FN void gk_put_sum(GK_GLOBAL gk_t* y, gk_i64 i, gk_s v, int mode)
{
    if (mode) v += gk_load(y, i);
    gk_store(y, i, v);
}
#else
typedef gk_u64 gk_s;
#define gk_summand(x) ((gk_u64)(gk_i64)(x))
GK_FN void gk_put_sum(GK_GLOBAL gk_t* y, gk_i64 i, gk_s v, int mode)
{
    if (mode) ((GK_GLOBAL gk_i64*)y)[i] = (gk_i64)v;
    else y[i] = (gk_t)v;
}
#endif

/* Elements per thread, consecutive ones, and per tile of a row. */
#define GK_SCAN_RUN 8
#define GK_SPAN (GK_SCAN_RUN * GK_BLOCK)
/* Place of an element in local memory, so that threads that read runs of 8 meet different banks. */
#define GK_AT(i) ((i) + (i) / 32)

/* Sum over the block, in every thread; tmp holds GK_BLOCK. */
GK_FN gk_s gk_total(gk_s v, GK_LOCAL_PTR gk_s* tmp)
{
    int t = gk_lid();
    tmp[t] = v;
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
        if (t < m) tmp[t] += tmp[t + m];
        GK_BARRIER();
    }
    v = tmp[0];
    GK_BARRIER();
    return v;
}

/* Sums of what precedes each lane of a group, back to the last lane with a flag; lanes are `step` threads apart, lane 0 gets 0. tmp and
 * flags hold 2 * GK_BLOCK; entry `first + lane * step` behind the number that is returned is the inclusive sum. */
GK_FN int gk_lane_scan(gk_s v, int flag, GK_LOCAL_PTR gk_s* tmp, GK_LOCAL_PTR int* flags, int lane, int lanes, int step)
{
    int t = gk_lid(), bank = 0;
    tmp[t] = v;
    flags[t] = flag;
    GK_BARRIER();
    for (int m = 1; m < lanes; m <<= 1) {
        int from = bank + t, to = GK_BLOCK - bank + t;
        gk_s s = tmp[from];
        int f = flags[from];
        if (lane >= m && !f) {
            s = tmp[from - m * step] + s;
            f = flags[from - m * step];
        }
        tmp[to] = s;
        flags[to] = f;
        bank = GK_BLOCK - bank;
        GK_BARRIER();
    }
    return bank;
}

/* What precedes each thread of the block, back to the last thread with a flag, and in `total` what the last thread's sum is. tmp and flags hold
 * 2 * GK_BLOCK; `turn` is even and odd in turns from call to call. */
#if defined(gk_shuffle_xor) && GK_IS_FLOAT
/* Lanes exchange their sums, then the sums of the waves meet in local memory, in the half of the turn: one barrier. */
GK_FN gk_s gk_block_before(gk_s v, int flag, GK_LOCAL_PTR gk_s* tmp, GK_LOCAL_PTR int* flags, int turn, gk_s* total)
{
    int t = gk_lid(), cut = 0, at = turn % 2 * GK_BLOCK, wave = t / GK_SHUFFLE_WIDTH;
    gk_s before = 0, ahead = 0, all = 0;
    GK_UNROLL for (int m = 1; m < GK_SHUFFLE_WIDTH; m <<= 1) {
        /* The neighbouring group: the lower one comes first. */
        gk_s s = gk_shuffle_xor(v, m);
        int f = gk_shuffle_xor_i32(flag, m);
        if (t & m) {
            if (!cut) before = s + before;
            if (!flag) v = s + v;
            cut |= f;
        } else {
            v = f ? s : v + s;
        }
        flag |= f;
    }
    if (t % GK_SHUFFLE_WIDTH == 0) {
        tmp[at + wave] = v;
        flags[at + wave] = flag;
    }
    GK_BARRIER();
    GK_UNROLL for (int k = 0; k < GK_BLOCK / GK_SHUFFLE_WIDTH; k++) {
        gk_s s = tmp[at + k];
        if (k == wave) ahead = all;
        all = flags[at + k] ? s : all + s;
    }
    *total = all;
    return cut ? before : ahead + before;
}
#else
GK_FN gk_s gk_block_before(gk_s v, int flag, GK_LOCAL_PTR gk_s* tmp, GK_LOCAL_PTR int* flags, int turn, gk_s* total)
{
    int t = gk_lid(), bank = gk_lane_scan(v, flag, tmp, flags, t, GK_BLOCK, 1);
    gk_s before = 0;
    (void)turn;
    if (t > 0) before = tmp[bank + t - 1];
    *total = tmp[bank + GK_BLOCK - 1];
    GK_BARRIER();
    return before;
}
#endif

// Units: ALL
/* part[row * splits + s] = sum of chunk s of a row, in the order of the scan. wide: as in scan_rows. Launch: one block per chunk. */
GK_KERNEL(scan_partial)(GK_IN(gk_t, x), GK_OUT(gk_s, part), gk_i64 cols, gk_i64 chunk, int splits, int reverse, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_s, part);
    GK_LOCAL gk_s tmp[GK_BLOCK];
    gk_i64 row = gk_bid(0) / splits, first = gk_bid(0) % splits * chunk, end = first + chunk < cols ? first + chunk : cols;
    gk_i64 from = row * cols + (reverse ? cols - end : first), n = end - first, i = gk_lid();
    gk_s a = 0, b = 0, c = 0, d = 0;
#if GK_IS_FLOAT
    if (wide) {
        gk_i64 k = i * GK_W, step = GK_BLOCK * GK_W;
        for (; k + 3 * step < n; k += 4 * step) {
            gk_vec v[4];
            GK_UNROLL for (int u = 0; u < 4; u++) v[u] = gk_loadv(x, from + k + u * step);
            GK_UNROLL for (int u = 0; u < GK_W; u++) { a += v[0].v[u]; b += v[1].v[u]; c += v[2].v[u]; d += v[3].v[u]; }
        }
        for (; k < n; k += step) {
            gk_vec v = gk_loadv(x, from + k);
            GK_UNROLL for (int u = 0; u < GK_W; u++) a += v.v[u];
        }
        i = n;
    }
#endif
    for (; i + 3 * GK_BLOCK < n; i += 4 * GK_BLOCK) {
        a += gk_summand(gk_load(x, from + i));
        b += gk_summand(gk_load(x, from + i + GK_BLOCK));
        c += gk_summand(gk_load(x, from + i + 2 * GK_BLOCK));
        d += gk_summand(gk_load(x, from + i + 3 * GK_BLOCK));
    }
    for (; i < n; i += GK_BLOCK) a += gk_summand(gk_load(x, from + i));
    a = gk_total((a + b) + (c + d), tmp);
    if (gk_lid() == 0) part[gk_bid(0)] = a;
}

#if GK_W <= GK_SCAN_RUN
/* A thread's run, of which the first count - mine elements exist, in 16-byte pieces; reversed, it ends where it begins. */
GK_FN void gk_run_read(gk_s v[GK_SCAN_RUN], GK_GLOBAL const gk_t* x, gk_i64 here, int mine, int count, int reverse)
{
    GK_UNROLL for (int q = 0; q < GK_SCAN_RUN; q += GK_W) {
        gk_vec w;
        if (mine + GK_SCAN_RUN <= count) {
            w = gk_loadv(x, here + q);
        } else {
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                int p = reverse ? GK_SCAN_RUN - 1 - q - u : q + u;
                w.v[u] = 0;
                if (mine + p < count) w.v[u] = gk_load(x, here + q + u);
            }
        }
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            if (reverse) v[GK_SCAN_RUN - 1 - q - u] = gk_summand(w.v[u]);
            else v[q + u] = gk_summand(w.v[u]);
        }
    }
}
#endif
#if GK_W <= GK_SCAN_RUN && GK_IS_FLOAT
GK_FN void gk_run_write(GK_GLOBAL gk_t* y, gk_s v[GK_SCAN_RUN], gk_i64 here, int mine, int count, int reverse, int mode)
{
    GK_UNROLL for (int q = 0; q < GK_SCAN_RUN; q += GK_W) {
        gk_vec w;
        GK_UNROLL for (int u = 0; u < GK_W; u++) {
            if (reverse) w.v[u] = v[GK_SCAN_RUN - 1 - q - u];
            else w.v[u] = v[q + u];
        }
        if (mine + GK_SCAN_RUN <= count) {
            if (mode) {
                gk_vec o = gk_loadv(y, here + q);
                GK_UNROLL for (int u = 0; u < GK_W; u++) w.v[u] += o.v[u];
            }
            gk_storev(y, here + q, w);
        } else {
            GK_UNROLL for (int u = 0; u < GK_W; u++) {
                int p = reverse ? GK_SCAN_RUN - 1 - q - u : q + u;
                if (mine + p < count) gk_put_sum(y, here + q + u, w.v[u], mode);
            }
        }
    }
}
#endif

/* Loads in flight from many blocks hide more than registers do. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS (GK_DTYPE == GK_F64 ? 0 : 5)

/* Rows. With per > 0 a block scans `per` whole rows of at most GK_SPAN elements together; with per = 0 chunk (block % splits) of row
 * (block / splits), tile after tile. wide: runs of 8 may be moved in 16-byte pieces. Launch: one block per `per` rows or per chunk. */
GK_KERNEL(scan_rows)(GK_IN(gk_t, x), GK_IN(gk_s, part), GK_OUT(gk_t, y), gk_i64 rows, gk_i64 cols, int per, gk_i64 chunk, int splits,
                     int exclusive, int reverse, int mode, int wide)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_s, part); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_s tile[GK_AT(GK_SPAN)];
    GK_LOCAL gk_s tmp[2 * GK_BLOCK];
    GK_LOCAL int flags[2 * GK_BLOCK];
    int t = gk_lid(), turn = 0;
    gk_i64 first = 0, n, low;
    gk_s carry = 0;
    if (per > 0) {
        gk_i64 r = (gk_i64)gk_bid(0) * per, have = rows - r < per ? rows - r : per;
        low = r * cols;
        n = have * cols;
    } else {
        int s = gk_bid(0) % splits;
        gk_i64 r = gk_bid(0) / splits;
        low = r * cols;
        first = s * chunk;
        n = first + chunk < cols ? first + chunk : cols;
        for (int i = t; i < s; i += GK_BLOCK) carry += part[r * splits + i];
        if (splits > 1) carry = gk_total(carry, tmp);
    }
    /* Address of position p: low + p, or top - p. */
    gk_i64 top = low + (per > 0 ? n : cols) - 1;
    for (gk_i64 at = first; at < n; at += GK_SPAN) {
        int count = n - at < GK_SPAN ? (int)(n - at) : GK_SPAN, mine = t * GK_SCAN_RUN;
        gk_s v[GK_SCAN_RUN];
        gk_i64 here = reverse ? top - at - mine - (GK_SCAN_RUN - 1) : low + at + mine;
        if (!wide) {
            GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) {
                int i = k * GK_BLOCK + t;
                gk_s e = 0;
                if (i < count) e = gk_summand(gk_load(x, reverse ? top - at - i : low + at + i));
                tile[GK_AT(i)] = e;
            }
            GK_BARRIER();
            GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) v[k] = tile[GK_AT(mine + k)];
        }
#if GK_W <= GK_SCAN_RUN
        else {
            gk_run_read(v, x, here, mine, count, reverse);
        }
#endif
        /* Rows start where the phase is 0. */
        int period = per > 0 ? (int)cols : 0x7fffffff, phase = per > 0 ? mine % period : 1, flag = 0;
        gk_s s = 0;
        int f = phase;
        GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) {
            if (f == 0) {
                s = 0;
                flag = 1;
            }
            s += v[k];
            f = f + 1 == period ? 0 : f + 1;
        }
        gk_s total, run = carry + gk_block_before(s, flag, tmp, flags, turn++, &total);
        carry += total;
        f = phase;
        GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) {
            if (f == 0) run = 0;
            gk_s before = run;
            run += v[k];
            v[k] = exclusive ? before : run;
            f = f + 1 == period ? 0 : f + 1;
        }
        if (!wide) {
            GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) tile[GK_AT(mine + k)] = v[k];
            GK_BARRIER();
            GK_UNROLL for (int k = 0; k < GK_SCAN_RUN; k++) {
                int i = k * GK_BLOCK + t;
                if (i < count) gk_put_sum(y, reverse ? top - at - i : low + at + i, tile[GK_AT(i)], mode);
            }
            GK_BARRIER();
        }
#if GK_W <= GK_SCAN_RUN && GK_IS_FLOAT
        else {
            gk_run_write(y, v, here, mine, count, reverse, mode);
        }
#endif
    }
}

/* Columns keep a run of each thread in registers. */
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 0

/* Blocks of a scan with inner > 1: tiles of `tx` columns, splits fastest, then tiles, then outer. */
typedef struct { gk_i64 o, i, k0, k1; int s, lane; } gk_strip;

GK_FN gk_strip gk_strip_of(gk_i64 size, gk_i64 inner, int tx, gk_i64 chunk, int splits)
{
    gk_strip r;
    gk_i64 tiles = (inner + tx - 1) / tx, g = gk_bid(0) / splits;
    r.s = gk_bid(0) % splits;
    r.o = g / tiles;
    r.i = g % tiles * tx + gk_lid() % tx;
    r.lane = gk_lid() / tx;
    r.k0 = r.s * chunk;
    r.k1 = r.k0 + chunk < size ? r.k0 + chunk : size;
    if (r.i >= inner) r.k1 = r.k0;
    return r;
}

/* part[(o * splits + s) * inner + i] = sum of chunk s of a column. Launch: one block per chunk of a tile of columns. */
GK_KERNEL(scan_partial_columns)(GK_IN(gk_t, x), GK_OUT(gk_s, part), gk_i64 size, gk_i64 inner, int tx, gk_i64 chunk, int splits, int reverse)
{
    GK_BIND_IN(gk_t, x); GK_BIND_OUT(gk_s, part);
    GK_LOCAL gk_s tmp[GK_BLOCK];
    gk_strip p = gk_strip_of(size, inner, tx, chunk, splits);
    int t = gk_lid(), ty = GK_BLOCK / tx;
    gk_s a = 0, b = 0;
    gk_i64 k = p.k0 + p.lane;
    for (; k + ty < p.k1; k += 2 * ty) {
        gk_i64 k2 = k + ty;
        a += gk_summand(gk_load(x, (p.o * size + (reverse ? size - 1 - k : k)) * inner + p.i));
        b += gk_summand(gk_load(x, (p.o * size + (reverse ? size - 1 - k2 : k2)) * inner + p.i));
    }
    if (k < p.k1) a += gk_summand(gk_load(x, (p.o * size + (reverse ? size - 1 - k : k)) * inner + p.i));
    tmp[t] = a + b;
    GK_BARRIER();
    for (int m = ty / 2; m > 0; m >>= 1) {
        if (p.lane < m) tmp[t] += tmp[t + m * tx];
        GK_BARRIER();
    }
    if (p.lane == 0 && p.i < inner) part[(p.o * splits + p.s) * inner + p.i] = tmp[t];
}

/* Columns: threads lie side by side along `inner`, and each takes 8 elements of the axis in turn. Launch: as scan_partial_columns. */
GK_KERNEL(scan_columns)(GK_IN(gk_t, x), GK_IN(gk_s, part), GK_OUT(gk_t, y), gk_i64 size, gk_i64 inner, int tx, gk_i64 chunk, int splits,
                     int exclusive, int reverse, int mode)
{
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_s, part); GK_BIND_OUT(gk_t, y);
    GK_LOCAL gk_s tmp[2 * GK_BLOCK];
    GK_LOCAL int flags[2 * GK_BLOCK];
    gk_strip p = gk_strip_of(size, inner, tx, chunk, splits);
    int t = gk_lid(), ty = GK_BLOCK / tx;
    gk_i64 step = reverse ? -inner : inner, base = (p.o * size + (reverse ? size - 1 : 0)) * inner + p.i;
    gk_s carry = 0;
    if (p.k0 < p.k1) {
        for (int s = 0; s < p.s; s++) carry += part[(p.o * splits + s) * inner + p.i];
    }
    for (gk_i64 at = p.s * chunk; at < size && at < (p.s + 1) * chunk; at += (gk_i64)ty * GK_SCAN_RUN) {
        gk_i64 k = at + (gk_i64)p.lane * GK_SCAN_RUN;
        gk_s v[GK_SCAN_RUN], s = 0;
        GK_UNROLL for (int u = 0; u < GK_SCAN_RUN; u++) {
            v[u] = 0;
            if (k + u < p.k1) v[u] = gk_summand(gk_load(x, base + (k + u) * step));
        }
        GK_UNROLL for (int u = 0; u < GK_SCAN_RUN; u++) s += v[u];
        int bank = gk_lane_scan(s, 0, tmp, flags, p.lane, ty, tx);
        gk_s run = carry;
        if (p.lane > 0) run += tmp[bank + t - tx];
        carry += tmp[bank + (ty - 1) * tx + t % tx];
        GK_UNROLL for (int u = 0; u < GK_SCAN_RUN; u++) {
            gk_s before = run;
            run += v[u];
            if (k + u < p.k1) gk_put_sum(y, base + (k + u) * step, exclusive ? before : run, mode);
        }
        GK_BARRIER();
    }
}
