/* Loss between spectrograms of several resolutions (Yamamoto et al., 2020).
 *
 * Per resolution, with M = sqrt(max(|X|^2, 1e-7)) of the short-time Fourier transform X [signals, frames, n/2 + 1]:
 *   |Mt - Mp|_F / |Mt|_F + mean |ln Mt - ln Mp|
 * Frames start every hop samples of the signal reflected by n/2 at both ends; a Hann window of win samples stands in their middle.
 *
 * A block transforms `group` frames at a time, each as one complex sequence p + i*t, whose transform holds both spectra: a self-sorting
 * mixed-radix FFT (Stockham) between two buffers, in shared memory up to GK_FFT_MAX numbers and in the block's part of `work` beyond. Any n
 * works; a prime factor r costs r terms per number. Spectra are never stored. The adjoint is the same transform of the conjugate, and the
 * signal's gradient gathers its frames in order: results repeat bit by bit. Arithmetic in gk_f. Reference: torch.stft.
 */

#if GK_DTYPE == GK_F64
#define GK_FFT_MAX 1024
#else
#define GK_FFT_MAX 2048
#endif
/* Smallest |X|^2. */
#define GK_FLOOR GK_R(1e-7)

/* cos and sin of k/n of a turn, 0 <= k < n. The angle is brought into the first eighth in whole numbers: no digits are lost. */
GK_FN void gk_turn(gk_i64 k, gk_i64 n, gk_f* c, gk_f* s)
{
    gk_i64 a = 4 * k;
    int below = a > 2 * n;
    if (below) a = 4 * n - a;
    int left = a > n;
    if (left) a = 2 * n - a;
    int steep = 2 * a > n;
    if (steep) a = n - a;
    gk_f t = GK_R(1.5707963267948966) * ((gk_f)a / (gk_f)n);
    gk_f x = gk_cos(t), y = gk_sin(t), z = x;
    if (steep) { x = y; y = z; }
    *c = left ? -x : x;
    *s = below ? -y : y;
}

// Units: FLOATS64
/* table: cos and sin of k/n of a turn for k < n, then the window. Launch: grid-stride over max(n, win). */
GK_KERNEL(stft_table)(GK_OUT(gk_f, table), gk_i64 n, gk_i64 win)
{
    GK_BIND_OUT(gk_f, table);
    for (gk_i64 i = gk_gid(); i < n || i < win; i += gk_gsize()) {
        gk_f c, s;
        if (i < n) {
            gk_turn(i, n, &c, &s);
            table[2 * i] = c;
            table[2 * i + 1] = s;
        }
        if (i < win) {
            gk_turn(i, 2 * win, &c, &s);
            table[2 * n + i] = win == 1 ? GK_R(1.0) : s * s;
        }
    }
}

/* The factor that is split off next: 4, 2, or the smallest odd one. */
GK_FN int gk_radix(int n)
{
    if (n % 4 == 0) return 4;
    if (n % 2 == 0) return 2;
    for (int r = 3; r * r <= n; r += 2)
        if (n % r == 0) return r;
    return n;
}

/* Transforms g sequences of n numbers, one after the other in a (real parts, then at + cap imaginary parts); b is of the same size. Returns
 * whether the result is in b. Whole blocks call it. */
#define GK_DEFINE_FFT(KIND, NAME, SPACE) \
    KIND int NAME(SPACE gk_f* a, SPACE gk_f* b, GK_GLOBAL const gk_f* table, int n, int g, int cap) \
    { \
        SPACE gk_f* x = a; \
        SPACE gk_f* y = b; \
        for (int len = n, s = 1; len > 1;) { \
            int r = gk_radix(len), step = n / len, far = n / r; \
            GK_BARRIER(); \
            if (r == 4) { \
                for (int i = gk_lid(); i < g * far; i += GK_BLOCK) { \
                    int f = i / far, j = i - f * far, p = j / s, q = j - p * s, at = f * n + j, to = f * n + q + 4 * s * p; \
                    gk_f ar = x[at], ai = x[cap + at], br = x[at + far], bi = x[cap + at + far]; \
                    gk_f cr = x[at + 2 * far], ci = x[cap + at + 2 * far], dr = x[at + 3 * far], di = x[cap + at + 3 * far]; \
                    gk_f er = ar + cr, ei = ai + ci, fr = ar - cr, fi = ai - ci, gr = br + dr, gi = bi + di, hr = br - dr, hi = bi - di; \
                    GK_GLOBAL const gk_f* w = table; \
                    y[to] = er + gr; \
                    y[cap + to] = ei + gi; \
                    w += 2 * (p * step); \
                    gk_f ur = fr + hi, ui = fi - hr; \
                    y[to + s] = ur * w[0] + ui * w[1]; \
                    y[cap + to + s] = ui * w[0] - ur * w[1]; \
                    w += 2 * (p * step); \
                    ur = er - gr; ui = ei - gi; \
                    y[to + 2 * s] = ur * w[0] + ui * w[1]; \
                    y[cap + to + 2 * s] = ui * w[0] - ur * w[1]; \
                    w += 2 * (p * step); \
                    ur = fr - hi; ui = fi + hr; \
                    y[to + 3 * s] = ur * w[0] + ui * w[1]; \
                    y[cap + to + 3 * s] = ui * w[0] - ur * w[1]; \
                } \
            } else { \
                for (int i = gk_lid(); i < g * n; i += GK_BLOCK) { \
                    int f = i / n, o = i - f * n, u = o / s, q = o - u * s, p = u / r, k = u - p * r; \
                    int at = f * n + q + s * p, w = p * k * step, turn = k * far; \
                    gk_f re = GK_R(0.0), im = GK_R(0.0); \
                    for (int t = 0; t < r; t++) { \
                        gk_f c = table[2 * w], e = table[2 * w + 1], xr = x[at], xi = x[cap + at]; \
                        re += xr * c + xi * e; \
                        im += xi * c - xr * e; \
                        at += far; \
                        w += turn; \
                        if (w >= n) w -= n; \
                    } \
                    y[i] = re; \
                    y[cap + i] = im; \
                } \
            } \
            SPACE gk_f* z = x; \
            x = y; \
            y = z; \
            len /= r; \
            s *= r; \
        } \
        GK_BARRIER(); \
        return x == b; \
    }
GK_DEFINE_FFT(GK_FN, gk_fft_local, GK_LOCAL_PTR)
GK_DEFINE_FFT(GK_FN_CALL, gk_fft_global, GK_GLOBAL)

/* Frames first .. first + g of p + i*t under the window into x. */
#define GK_LOAD_FRAMES(x) \
    gk_i64 signal = first / frames, within = first - signal * frames; \
    for (int i = gk_lid(); i < g * n; i += GK_BLOCK) { \
        int f = i / n, j = i - f * n, w = j - (n - win) / 2; \
        gk_f re = GK_R(0.0), im = GK_R(0.0); \
        if (w >= 0 && w < win) { \
            gk_u32 frame = (gk_u32)within + (gk_u32)f, next = frame / (gk_u32)frames; \
            gk_i64 row = signal + next, at = (gk_i64)(frame - next * (gk_u32)frames) * hop + j - n / 2; \
            if (at < 0) at = -at; \
            if (at >= T) at = 2 * (T - 1) - at; \
            gk_f weight = table[2 * n + w]; \
            re = gk_load(p, row * T + at) * weight; \
            im = gk_load(t, row * T + at) * weight; \
        } \
        x[i] = re; \
        x[cap + i] = im; \
    }

/* Both spectra of number i = frame f, frequency k of the transform x: Pr, Pi, and the squared magnitudes. */
#define GK_SPECTRA(x) \
    int o = f * n + (k ? n - k : 0); \
    gk_f Zr = x[i], Zi = x[cap + i], Cr = x[o], Ci = x[cap + o]; \
    gk_f Pr = GK_R(0.5) * (Zr + Cr), Pi = GK_R(0.5) * (Zi - Ci), Tr = GK_R(0.5) * (Zi + Ci), Ti = GK_R(0.5) * (Cr - Zr); \
    gk_f power = Pr * Pr + Pi * Pi, pp = gk_max(power, GK_FLOOR), pt = gk_max(Tr * Tr + Ti * Ti, GK_FLOOR);

/* Adds (Mt - Mp)^2, Mt^2 and |ln Mt - ln Mp| of g frames. */
#define GK_ADD_SUMS(x) \
    for (int i = gk_lid(); i < g * n; i += GK_BLOCK) { \
        int f = i / n, k = i - f * n; \
        if (k <= n / 2) { \
            GK_SPECTRA(x) \
            gk_f d = gk_sqrt(pt) - gk_sqrt(pp); \
            distance += d * d; \
            size += pt; \
            logs += GK_R(0.5) * gk_fabs(gk_log(pt) - gk_log(pp)); \
        } \
    }

/* partial [blocks, 3]: the sums of this block's frames. Launch: blocks loop over groups of frames. */
GK_KERNEL(stft_sums)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_f, table), GK_OUT(gk_f, work), GK_OUT(gk_f, partial), gk_i64 total, gk_i64 frames,
                     gk_i64 T, int n, gk_i64 hop, int win, int group)
{
    GK_LOCAL gk_f buffer[4 * GK_FFT_MAX];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_f, table); GK_BIND_OUT(gk_f, work); GK_BIND_OUT(gk_f, partial);
    int cap = group * n;
    gk_f distance = GK_R(0.0), size = GK_R(0.0), logs = GK_R(0.0);
    for (gk_i64 first = (gk_i64)gk_bid(0) * group; first < total; first += (gk_i64)gk_nblocks(0) * group) {
        int g = total - first < group ? (int)(total - first) : group;
        if (work) {
            GK_GLOBAL gk_f* a = work + (gk_i64)gk_bid(0) * 4 * cap;
            GK_LOAD_FRAMES(a)
            GK_GLOBAL gk_f* z = a + 2 * cap * gk_fft_global(a, a + 2 * cap, table, n, g, cap);
            GK_ADD_SUMS(z)
        } else {
            GK_LOAD_FRAMES(buffer)
            GK_LOCAL_PTR gk_f* z = buffer + 2 * cap * gk_fft_local(buffer, buffer + 2 * cap, table, n, g, cap);
            GK_ADD_SUMS(z)
        }
        GK_BARRIER();
    }
    distance = gk_block_sum(distance, buffer);
    size = gk_block_sum(size, buffer);
    logs = gk_block_sum(logs, buffer);
    if (gk_lid() == 0) {
        gk_i64 at = 3 * (gk_i64)gk_bid(0);
        partial[at] = distance;
        partial[at + 1] = size;
        partial[at + 2] = logs;
    }
}

/* stat = both norms; loss += factor * (their quotient + sum of logarithms / count). One block. */
GK_KERNEL(stft_finish)(GK_IN(gk_f, partial), gk_i64 blocks, gk_f count, gk_f factor, int add, GK_OUT(gk_f, stat), GK_OUT(gk_f, loss))
{
    GK_LOCAL gk_f tmp[GK_BLOCK];
    GK_BIND_IN(gk_f, partial); GK_BIND_OUT(gk_f, stat); GK_BIND_OUT(gk_f, loss);
    gk_f distance = GK_R(0.0), size = GK_R(0.0), logs = GK_R(0.0);
    for (gk_i64 i = gk_lid(); i < blocks; i += GK_BLOCK) {
        distance += partial[3 * i];
        size += partial[3 * i + 1];
        logs += partial[3 * i + 2];
    }
    distance = gk_sqrt(gk_block_sum(distance, tmp));
    size = gk_sqrt(gk_block_sum(size, tmp));
    logs = gk_block_sum(logs, tmp);
    if (gk_lid() == 0) {
        if (stat) { stat[0] = distance; stat[1] = size; }
        if (loss) {
            gk_f l = factor * (distance / size + logs / count);
            if (add) l += loss[0];
            loss[0] = l;
        }
    }
}

/* Conjugate gradients of Mp with respect to the spectrum of p, from the transform x into y; 0 for the upper half. */
#define GK_SPECTRUM_GRAD(x, y) \
    for (int i = gk_lid(); i < g * n; i += GK_BLOCK) { \
        int f = i / n, k = i - f * n; \
        gk_f re = GK_R(0.0), im = GK_R(0.0); \
        if (k <= n / 2) { \
            GK_SPECTRA(x) \
            gk_f mp = gk_sqrt(pp), mt = gk_sqrt(pt), d = ratio * (mp - mt) + (pp > pt ? each : pp < pt ? -each : GK_R(0.0)) / mp; \
            if (!(power < GK_FLOOR)) { re = d * Pr / mp; im = -d * Pi / mp; } \
        } \
        y[i] = re; \
        y[cap + i] = im; \
    }

/* Real parts under the window. */
#define GK_STORE_FRAMES(x) \
    for (int i = gk_lid(); i < g * win; i += GK_BLOCK) { \
        int f = i / win, w = i - f * win; \
        grad[(first + f) * win + w] = x[f * n + w + (n - win) / 2] * table[2 * n + w]; \
    }

/* grad [total, win]: gradients of the frames. Launch as stft_sums. */
GK_KERNEL(stft_frames)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_f, table), GK_OUT(gk_f, work), GK_IN(gk_f, stat), GK_IN(gk_t, gy), int gy_f32,
                       GK_OUT(gk_f, grad), gk_i64 total, gk_i64 frames, gk_i64 T, int n, gk_i64 hop, int win, int group, gk_f count, gk_f factor)
{
    GK_LOCAL gk_f buffer[4 * GK_FFT_MAX];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_f, table); GK_BIND_OUT(gk_f, work); GK_BIND_IN(gk_f, stat); GK_BIND_IN(gk_t, gy);
    GK_BIND_OUT(gk_f, grad);
    int cap = group * n;
    gk_f up = factor * (gy_f32 ? (gk_f)((GK_GLOBAL const float*)gy)[0] : gk_load(gy, 0));
    gk_f ratio = stat[0] == GK_R(0.0) ? GK_R(0.0) : up / stat[0] / stat[1], each = up / count;
    for (gk_i64 first = (gk_i64)gk_bid(0) * group; first < total; first += (gk_i64)gk_nblocks(0) * group) {
        int g = total - first < group ? (int)(total - first) : group;
        if (work) {
            GK_GLOBAL gk_f* a = work + (gk_i64)gk_bid(0) * 4 * cap;
            GK_LOAD_FRAMES(a)
            int second = gk_fft_global(a, a + 2 * cap, table, n, g, cap);
            GK_GLOBAL gk_f* z = a + 2 * cap * second;
            GK_GLOBAL gk_f* y = a + 2 * cap * !second;
            GK_SPECTRUM_GRAD(z, y)
            if (gk_fft_global(y, z, table, n, g, cap)) y = z;
            GK_STORE_FRAMES(y)
        } else {
            GK_LOAD_FRAMES(buffer)
            int second = gk_fft_local(buffer, buffer + 2 * cap, table, n, g, cap);
            GK_LOCAL_PTR gk_f* z = buffer + 2 * cap * second;
            GK_LOCAL_PTR gk_f* y = buffer + 2 * cap * !second;
            GK_SPECTRUM_GRAD(z, y)
            if (gk_fft_local(y, z, table, n, g, cap)) y = z;
            GK_STORE_FRAMES(y)
        }
        GK_BARRIER();
    }
}

/* Sum of what the frames of a signal (grad [frames, win]) say about position u of the reflected signal. */
GK_FN gk_f gk_overlap(GK_GLOBAL const gk_f* grad, gk_i64 u, gk_i64 frames, gk_i64 hop, gk_i64 win)
{
    gk_f v = GK_R(0.0);
    if (u < 0) return v;
    gk_i64 last = u / hop, f = u < win ? 0 : (u - win) / hop + 1;
    if (last > frames - 1) last = frames - 1;
    for (; f <= last; f++) v += grad[f * win + u - f * hop];
    return v;
}

/* Gradient of the samples: overlapping frames and their reflections, added to `sum` of the resolutions before unless `fresh`; into dp where it is
 * given (`accumulate` adds to what is there), else into sum. Launch: grid-stride. */
GK_KERNEL(stft_gather)(GK_IN(gk_f, grad), GK_OUT(gk_f, sum), int fresh, GK_OUT(gk_t, dp), int accumulate, gk_i64 N, gk_i64 T, gk_i64 frames, gk_i64 n,
                       gk_i64 hop, gk_i64 win)
{
    GK_BIND_IN(gk_f, grad); GK_BIND_OUT(gk_f, sum); GK_BIND_OUT(gk_t, dp);
    for (gk_i64 i = gk_gid(); i < N; i += gk_gsize()) {
        gk_i64 row = i / T, s = i - row * T, pad = n / 2, left = pad - (n - win) / 2;
        GK_GLOBAL const gk_f* own = grad + row * frames * win;
        gk_f v = gk_overlap(own, left + s, frames, hop, win);
        if (s > 0 && s <= pad) v += gk_overlap(own, left - s, frames, hop, win);
        if (s < T - 1 && s >= T - 1 - pad) v += gk_overlap(own, left + 2 * (T - 1) - s, frames, hop, win);
        if (!fresh) v += sum[i];
        if (dp) {
            if (accumulate) v += gk_load(dp, i);
            gk_store(dp, i, v);
        } else {
            sum[i] = v;
        }
    }
}
