/* Windows of an implicit matrix product: where a place of y reads x, whose channels are last. Shared by the kernels for matrix cores.
 *
 * map = {depth, height, width, C, images} of x, out = {depth, height, width, rows, row tiles, ...} of y, win = {taps, strides}, geo = {paddings,
 * dilations}.
 */
/* A divisor below 2^31 (1 in place of none) and its reciprocal: quotients of many numbers cost five instructions each. */
typedef struct { int d; gk_u32 reciprocal; } gk_divisor;
GK_FN gk_divisor gk_divisor_of(gk_i64 d)
{
    gk_divisor r;
    r.d = d > 0 ? (int)d : 1; r.reciprocal = 0xffffffffu / (gk_u32)r.d;
    return r;
}
/* n / d of a non-negative n: the product is the quotient or one less. */
GK_FN int gk_divide(int n, gk_divisor d)
{
    int q = (int)gk_mulhi((gk_u32)n, d.reciprocal);
    return n - q * d.d >= d.d ? q + 1 : q;
}

/* How windows lie along an axis, for places of y of the same `phase` modulo the stride (of an adjoint; all places of a convolution): `size` of them, of
 * which number i begins at place i * advance + begin of x and has `count` taps, `dilation` apart: the window's taps first, first + step, ... */
typedef struct { int phase, size, advance, begin, first, step, count, dilation; } gk_axis;

GK_FN gk_axis gk_axis_of(int phase, int out, int taps, int stride, int pad, int dilation, const int back)
{
    gk_axis a;
    a.phase = 0; a.size = out; a.advance = stride; a.begin = -pad; a.first = 0; a.step = 1; a.count = taps; a.dilation = dilation;
    if (back) {
        /* Tap t meets x where place + pad - t * dilation is a multiple of the stride. */
        int t = 0, u = 1;
        while (t < taps && (phase + pad - t * dilation) % stride != 0) t++;
        while (u * dilation % stride != 0) u++;
        a.phase = phase; a.size = (out - phase + stride - 1) / stride; a.advance = 1;
        a.first = t; a.step = u; a.count = t < taps ? (taps - t + u - 1) / u : 0;
        a.begin = (phase + pad - t * dilation) / stride; a.dilation = -(u * dilation / stride);
    }
    return a;
}

/* The axes, taps of a window and places of an image (a phase may have none), and how numbers of places split into images and places along the axes. */
typedef struct { gk_axis d, h, w; int taps, places; gk_divisor plane, height, width; } gk_windows;

GK_FN gk_windows gk_windows_of(int phase, gk_dims out, gk_dims win, gk_dims geo, const int back)
{
    gk_windows a;
    int r = phase / (int)win.v[5], pw = phase - r * (int)win.v[5], pd = r / (int)win.v[4], ph = r - pd * (int)win.v[4];
    a.d = gk_axis_of(pd, (int)out.v[0], (int)win.v[0], (int)win.v[3], (int)geo.v[0], (int)geo.v[3], back);
    a.h = gk_axis_of(ph, (int)out.v[1], (int)win.v[1], (int)win.v[4], (int)geo.v[1], (int)geo.v[4], back);
    a.w = gk_axis_of(pw, (int)out.v[2], (int)win.v[2], (int)win.v[5], (int)geo.v[2], (int)geo.v[5], back);
    a.taps = a.d.count * a.h.count * a.w.count;
    if (a.taps == 0) a.h.count = a.w.count = 1;
    a.places = a.d.size * a.h.size * a.w.size;
    /* A stride beyond the map leaves phases without places, of which all axes are one long: going on by places ends. */
    if (a.places == 0) a.d.size = a.h.size = a.w.size = 1;
    a.plane = gk_divisor_of(a.places); a.height = gk_divisor_of(a.h.size); a.width = gk_divisor_of(a.w.size);
    return a;
}

/* A place of y: its image and its numbers along the axes. */
typedef struct { int n, d, h, w; } gk_place;
GK_FN gk_place gk_place_of(int q, const gk_windows* a)
{
    gk_place p;
    int i, r;
    p.n = gk_divide(q, a->plane); i = q - p.n * a->plane.d;
    r = gk_divide(i, a->width); p.w = i - r * a->width.d;
    p.d = gk_divide(r, a->height); p.h = r - p.d * a->height.d;
    return p;
}

/* On by n places. */
GK_FN void gk_place_on(gk_place* p, int n, const gk_windows* a)
{
    for (p->w += n; p->w >= a->w.size; p->w -= a->w.size) {
        int end = ++p->h == a->h.size;
        if (end) p->h = 0;
        end = end && ++p->d == a->d.size;
        if (end) { p->d = 0; p->n++; }
    }
}

/* Far outside every map. */
#define GK_NOWHERE (-0x10000000)

/* Where a window begins in x, along the axes and as an element, channel 0, which need not exist; and what a tap adds to it. */
typedef struct { int element, d, h, w; } gk_window;

GK_FN int gk_element(int d, int h, int w, gk_dims map) { return ((d * (int)map.v[1] + h) * (int)map.v[2] + w) * (int)map.v[3]; }

GK_FN gk_window gk_window_at(gk_place p, const gk_windows* a, gk_dims map)
{
    gk_window x;
    x.d = p.d * a->d.advance + a->d.begin; x.h = p.h * a->h.advance + a->h.begin; x.w = p.w * a->w.advance + a->w.begin;
    x.element = p.n * (int)(map.v[0] * map.v[1] * map.v[2] * map.v[3]) + gk_element(x.d, x.h, x.w, map);
    if (p.n >= map.v[4]) x.d = GK_NOWHERE;
    return x;
}

/* What number j of the windows' taps adds. */
GK_FN gk_window gk_tap_of(int j, const gk_windows* a, gk_dims map)
{
    gk_window x;
    int across = a->w.count, down = a->h.count, r = j / across, w = j - r * across, d = r / down, h = r - d * down;
    x.d = d * a->d.dilation; x.h = h * a->h.dilation; x.w = w * a->w.dilation;
    x.element = gk_element(x.d, x.h, x.w, map);
    return x;
}

/* Whether a window's tap meets x, at element a.element + tap.element of channel 0. */
GK_FN int gk_meets(gk_window a, gk_window tap, gk_dims map)
{
    int d = a.d + tap.d, h = a.h + tap.h, w = a.w + tap.w;
    return ((gk_u32)d < (gk_u32)map.v[0]) & ((gk_u32)h < (gk_u32)map.v[1]) & ((gk_u32)w < (gk_u32)map.v[2]);
}

/* Elements of x. */
GK_FN gk_i64 gk_elements(gk_dims map) { return map.v[0] * map.v[1] * map.v[2] * map.v[3] * map.v[4]; }

/* Windows with a stride of two across images of up to four channels are folded: four channels each of two neighbours across are eight of a place, taps across
 * half as many, and the stride 1. `fold` is 0 without; 1, or 2 where the first of the two places of a window's first tap lies before the window. */
GK_FN int gk_taps_folded(int across, int fold) { return (across + fold) / 2; }

/* The tap of a window, below 0 for none, and channel that tap `t` and channel `c` of a folded one are. `across`: taps of the window across. */
typedef struct { int tap, channel; } gk_tap;
GK_FN gk_tap gk_tap_folded(int t, int c, int across, int fold)
{
    gk_tap a;
    a.tap = t; a.channel = c;
    if (fold) {
        int folded = gk_taps_folded(across, fold), line = t / folded, w = 2 * (t - line * folded) + 1 - fold + c / 4;
        a.tap = w >= 0 && w < across ? line * across + w : -1;
        a.channel = c % 4;
    }
    return a;
}
