/* Transforms of groups of frames, included once for each place that these lie in.
 *
 * GK_STFT(x)       name of x for this place
 * GK_STFT_SPACE    address space of the numbers
 * GK_STFT_FN       how the transform, which is long, is declared
 */

/* Transforms g sequences of n numbers, one after the other in a (real parts, then at + cap imaginary parts); b is of the same size. Returns
 * whether the result is in b. Whole blocks call it. */
GK_STFT_FN int GK_STFT(fft)(GK_STFT_SPACE gk_f* a, GK_STFT_SPACE gk_f* b, GK_GLOBAL const gk_f* table, int n, int g, int cap)
{
    GK_STFT_SPACE gk_f* x = a;
    GK_STFT_SPACE gk_f* y = b;
    for (int len = n, s = 1; len > 1;) {
        int r = gk_radix(len), step = n / len, far = n / r;
        GK_BARRIER();
        if (r == 4) {
            for (int i = gk_lid(); i < g * far; i += GK_BLOCK) {
                int f = i / far, j = i - f * far, p = j / s, q = j - p * s, at = f * n + j, to = f * n + q + 4 * s * p;
                gk_f ar = x[at], ai = x[cap + at], br = x[at + far], bi = x[cap + at + far];
                gk_f cr = x[at + 2 * far], ci = x[cap + at + 2 * far], dr = x[at + 3 * far], di = x[cap + at + 3 * far];
                gk_f er = ar + cr, ei = ai + ci, fr = ar - cr, fi = ai - ci, gr = br + dr, gi = bi + di, hr = br - dr, hi = bi - di;
                GK_GLOBAL const gk_f* w = table;
                y[to] = er + gr;
                y[cap + to] = ei + gi;
                w += 2 * (p * step);
                gk_f ur = fr + hi, ui = fi - hr;
                y[to + s] = ur * w[0] + ui * w[1];
                y[cap + to + s] = ui * w[0] - ur * w[1];
                w += 2 * (p * step);
                ur = er - gr; ui = ei - gi;
                y[to + 2 * s] = ur * w[0] + ui * w[1];
                y[cap + to + 2 * s] = ui * w[0] - ur * w[1];
                w += 2 * (p * step);
                ur = fr - hi; ui = fi + hr;
                y[to + 3 * s] = ur * w[0] + ui * w[1];
                y[cap + to + 3 * s] = ui * w[0] - ur * w[1];
            }
        } else {
            for (int i = gk_lid(); i < g * n; i += GK_BLOCK) {
                int f = i / n, o = i - f * n, u = o / s, q = o - u * s, p = u / r, k = u - p * r;
                int at = f * n + q + s * p, w = p * k * step, turn = k * far;
                gk_f re = GK_R(0.0), im = GK_R(0.0);
                for (int t = 0; t < r; t++) {
                    gk_f c = table[2 * w], e = table[2 * w + 1], xr = x[at], xi = x[cap + at];
                    re += xr * c + xi * e;
                    im += xi * c - xr * e;
                    at += far;
                    w += turn;
                    if (w >= n) w -= n;
                }
                y[i] = re;
                y[cap + i] = im;
            }
        }
        GK_STFT_SPACE gk_f* z = x;
        x = y;
        y = z;
        len /= r;
        s *= r;
    }
    GK_BARRIER();
    return x == b;
}

/* The group's frames of p + i*t under the window into x. */
GK_FN void GK_STFT(load)(GK_STFT_SPACE gk_f* x, gk_frames s, GK_GLOBAL const gk_t* p, GK_GLOBAL const gk_t* t, GK_GLOBAL const gk_f* table)
{
    gk_i64 signal = s.first / s.frames, within = s.first - signal * s.frames;
    for (int i = gk_lid(); i < s.g * s.n; i += GK_BLOCK) {
        int f = i / s.n, j = i - f * s.n, w = j - (s.n - s.win) / 2;
        gk_f re = GK_R(0.0), im = GK_R(0.0);
        if (w >= 0 && w < s.win) {
            gk_u32 frame = (gk_u32)within + (gk_u32)f, next = frame / (gk_u32)s.frames;
            gk_i64 row = signal + next, at = (gk_i64)(frame - next * (gk_u32)s.frames) * s.hop + j - s.n / 2;
            if (at < 0) at = -at;
            if (at >= s.T) at = 2 * (s.T - 1) - at;
            gk_f weight = table[2 * s.n + w];
            re = gk_load(p, row * s.T + at) * weight;
            im = gk_load(t, row * s.T + at) * weight;
        }
        x[i] = re;
        x[s.cap + i] = im;
    }
}

/* Both spectra at number i = frame f, frequency k of the transform x. */
GK_FN gk_spectra GK_STFT(spectra)(GK_STFT_SPACE const gk_f* x, gk_frames s, int i, int f, int k)
{
    gk_spectra r;
    int o = f * s.n + (k ? s.n - k : 0);
    gk_f Zr = x[i], Zi = x[s.cap + i], Cr = x[o], Ci = x[s.cap + o], Tr = GK_R(0.5) * (Zi + Ci), Ti = GK_R(0.5) * (Cr - Zr);
    r.Pr = GK_R(0.5) * (Zr + Cr);
    r.Pi = GK_R(0.5) * (Zi - Ci);
    r.power = r.Pr * r.Pr + r.Pi * r.Pi;
    r.pp = gk_max(r.power, GK_FLOOR);
    r.pt = gk_max(Tr * Tr + Ti * Ti, GK_FLOOR);
    return r;
}

/* Adds (Mt - Mp)^2, Mt^2 and |ln Mt - ln Mp| of the group's frames to sums. */
GK_FN void GK_STFT(add)(GK_STFT_SPACE const gk_f* x, gk_frames s, gk_f sums[3])
{
    for (int i = gk_lid(); i < s.g * s.n; i += GK_BLOCK) {
        int f = i / s.n, k = i - f * s.n;
        if (k <= s.n / 2) {
            gk_spectra r = GK_STFT(spectra)(x, s, i, f, k);
            gk_f d = gk_sqrt(r.pt) - gk_sqrt(r.pp);
            sums[0] += d * d;
            sums[1] += r.pt;
            sums[2] += GK_R(0.5) * gk_fabs(gk_log(r.pt) - gk_log(r.pp));
        }
    }
}

/* Conjugate gradients of Mp with respect to the spectrum of p, from the transform x into y; 0 for the upper half. */
GK_FN void GK_STFT(slope)(GK_STFT_SPACE const gk_f* x, GK_STFT_SPACE gk_f* y, gk_frames s, gk_f ratio, gk_f each)
{
    for (int i = gk_lid(); i < s.g * s.n; i += GK_BLOCK) {
        int f = i / s.n, k = i - f * s.n;
        gk_f re = GK_R(0.0), im = GK_R(0.0);
        if (k <= s.n / 2) {
            gk_spectra r = GK_STFT(spectra)(x, s, i, f, k);
            gk_f mp = gk_sqrt(r.pp), mt = gk_sqrt(r.pt), d = ratio * (mp - mt) + (r.pp > r.pt ? each : r.pp < r.pt ? -each : GK_R(0.0)) / mp;
            if (!(r.power < GK_FLOOR)) { re = d * r.Pr / mp; im = -d * r.Pi / mp; }
        }
        y[i] = re;
        y[s.cap + i] = im;
    }
}

/* Gradients of the frames: the real parts of x under the window. */
GK_FN void GK_STFT(store)(GK_STFT_SPACE const gk_f* x, gk_frames s, GK_GLOBAL const gk_f* table, GK_GLOBAL gk_f* grad)
{
    for (int i = gk_lid(); i < s.g * s.win; i += GK_BLOCK) {
        int f = i / s.win, w = i - f * s.win;
        grad[(s.first + f) * s.win + w] = x[f * s.n + w + (s.n - s.win) / 2] * table[2 * s.n + w];
    }
}

#undef GK_STFT
#undef GK_STFT_SPACE
#undef GK_STFT_FN
