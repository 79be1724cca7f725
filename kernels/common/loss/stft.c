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

/* A group of g frames of n numbers under a window of win, `hop` apart in signals of T samples; the first is number `first` of all. The numbers' real
 * parts come first, their imaginary ones `cap` behind. */
typedef struct { gk_i64 first, frames, T, hop; int g, n, win, cap; } gk_frames;
/* The spectrum of p, its squared magnitude, and those of p and t, which are at least GK_FLOOR. */
typedef struct { gk_f Pr, Pi, power, pp, pt; } gk_spectra;

#define GK_STFT(x) gk_stft_local_##x
#define GK_STFT_SPACE GK_LOCAL_PTR
#define GK_STFT_FN GK_FN
#include "stft_frames.h"

#define GK_STFT(x) gk_stft_global_##x
#define GK_STFT_SPACE GK_GLOBAL
#define GK_STFT_FN GK_FN_CALL
#include "stft_frames.h"

GK_FN gk_frames gk_frames_of(gk_i64 first, gk_i64 total, gk_i64 frames, gk_i64 T, int n, gk_i64 hop, int win, int group)
{
    gk_frames s;
    s.first = first; s.frames = frames; s.T = T; s.hop = hop;
    s.g = total - first < group ? (int)(total - first) : group;
    s.n = n; s.win = win; s.cap = group * n;
    return s;
}

/* partial [blocks, 3]: the sums of this block's frames. Launch: blocks loop over groups of frames. */
GK_KERNEL(stft_sums)(GK_IN(gk_t, p), GK_IN(gk_t, t), GK_IN(gk_f, table), GK_OUT(gk_f, work), GK_OUT(gk_f, partial), gk_i64 total, gk_i64 frames,
                     gk_i64 T, int n, gk_i64 hop, int win, int group)
{
    GK_LOCAL gk_f buffer[4 * GK_FFT_MAX];
    GK_BIND_IN(gk_t, p); GK_BIND_IN(gk_t, t); GK_BIND_IN(gk_f, table); GK_BIND_OUT(gk_f, work); GK_BIND_OUT(gk_f, partial);
    int cap = group * n;
    gk_f sums[3];
    sums[0] = sums[1] = sums[2] = GK_R(0.0);
    for (gk_i64 first = (gk_i64)gk_bid(0) * group; first < total; first += (gk_i64)gk_nblocks(0) * group) {
        gk_frames s = gk_frames_of(first, total, frames, T, n, hop, win, group);
        if (work) {
            GK_GLOBAL gk_f* a = work + (gk_i64)gk_bid(0) * 4 * cap;
            gk_stft_global_load(a, s, p, t, table);
            GK_GLOBAL gk_f* z = a + 2 * cap * gk_stft_global_fft(a, a + 2 * cap, table, n, s.g, cap);
            gk_stft_global_add(z, s, sums);
        } else {
            gk_stft_local_load(buffer, s, p, t, table);
            GK_LOCAL_PTR gk_f* z = buffer + 2 * cap * gk_stft_local_fft(buffer, buffer + 2 * cap, table, n, s.g, cap);
            gk_stft_local_add(z, s, sums);
        }
        GK_BARRIER();
    }
    gk_f distance = gk_block_sum(sums[0], buffer);
    gk_f size = gk_block_sum(sums[1], buffer);
    gk_f logs = gk_block_sum(sums[2], buffer);
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
        gk_frames s = gk_frames_of(first, total, frames, T, n, hop, win, group);
        if (work) {
            GK_GLOBAL gk_f* a = work + (gk_i64)gk_bid(0) * 4 * cap;
            gk_stft_global_load(a, s, p, t, table);
            int second = gk_stft_global_fft(a, a + 2 * cap, table, n, s.g, cap);
            GK_GLOBAL gk_f* z = a + 2 * cap * second;
            GK_GLOBAL gk_f* y = a + 2 * cap * !second;
            gk_stft_global_slope(z, y, s, ratio, each);
            if (gk_stft_global_fft(y, z, table, n, s.g, cap)) y = z;
            gk_stft_global_store(y, s, table, grad);
        } else {
            gk_stft_local_load(buffer, s, p, t, table);
            int second = gk_stft_local_fft(buffer, buffer + 2 * cap, table, n, s.g, cap);
            GK_LOCAL_PTR gk_f* z = buffer + 2 * cap * second;
            GK_LOCAL_PTR gk_f* y = buffer + 2 * cap * !second;
            gk_stft_local_slope(z, y, s, ratio, each);
            if (gk_stft_local_fft(y, z, table, n, s.g, cap)) y = z;
            gk_stft_local_store(y, s, table, grad);
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
