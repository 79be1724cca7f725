/* Images of Gaussians in space (Kerbl et al., 2023: 3D Gaussian splatting), and the gradients.
 *
 *   project_gaussians     what the camera sees of each: centre, conic (a, b, c) of exp(-(a dx^2 + c dy^2) / 2 - b dx dy), depth, radius
 *   rasterize_gaussians   colours, from the front: weight w_i = T_i alpha_i, T the product of 1 - alpha over what is nearer
 * Camera space is p = W m + t; with J the derivative of the projection at p (its slope x/z held within 1.3 times the image's) the covariance on the
 * image is S = J W V W^T J^T + blur. Both gradients are those of these formulas; where a slope is held it has none.
 * A pixel takes a Gaussian where its alpha, at most 0.99, is at least 1/255, and ends before the one with which T would fall below 1e-4. Blocks have
 * tiles of 16 x 16 pixels and all Gaussians in the order of their depths, of which they take those that reach the tile.
 * The gradient of a Gaussian is summed over the pixels of a tile in a tree, then over tiles. With g_i = dy . color_i and B_i the sum of g_j w_j over
 * what is farther, plus the gradient of the last T times it: dalpha_i = T_i g_i - B_i / (1 - alpha_i).
 * Arithmetic in gk_f. Deterministic: one writer per element, sums in trees of fixed shape. Reference: the formulas in PyTorch.
 */

/* ---- projection ------------------------------------------------------------------------------------------------------------------ */

/* A Gaussian before the camera: its place, x/z and y/z, the same held within limits, T = J W and S. */
typedef struct { gk_f p[3], slope[2], held[2], j[4], t[6], a, b, c; } gk_projected;

GK_FN gk_projected gk_project(GK_GLOBAL const gk_t* mean, GK_GLOBAL const gk_t* cov, GK_GLOBAL const gk_t* view, GK_GLOBAL const gk_t* camera,
                              gk_f width, gk_f height, gk_f blur)
{
    gk_projected s;
    gk_f fx = gk_load(camera, 0), fy = gk_load(camera, 4), v[6];
    GK_UNROLL for (int i = 0; i < 3; i++)
        s.p[i] = gk_load(view, 4 * i) * gk_load(mean, 0) + gk_load(view, 4 * i + 1) * gk_load(mean, 1) + gk_load(view, 4 * i + 2) * gk_load(mean, 2) +
                 gk_load(view, 4 * i + 3);
    gk_f z = s.p[2], most[2];
    most[0] = GK_R(0.65) * width / fx;
    most[1] = GK_R(0.65) * height / fy;
    GK_UNROLL for (int i = 0; i < 2; i++) {
        s.slope[i] = s.p[i] / z;
        s.held[i] = s.slope[i] > most[i] ? most[i] : s.slope[i] < -most[i] ? -most[i] : s.slope[i];
    }
    s.j[0] = fx / z;
    s.j[1] = -fx * s.held[0] / z;
    s.j[2] = fy / z;
    s.j[3] = -fy * s.held[1] / z;
    GK_UNROLL for (int i = 0; i < 3; i++) {
        s.t[i] = s.j[0] * gk_load(view, i) + s.j[1] * gk_load(view, 8 + i);
        s.t[3 + i] = s.j[2] * gk_load(view, 4 + i) + s.j[3] * gk_load(view, 8 + i);
    }
    /* V T^T of the symmetric part of V. */
    GK_UNROLL for (int i = 0; i < 3; i++) {
        v[i] = v[3 + i] = GK_R(0.0);
        GK_UNROLL for (int k = 0; k < 3; k++) {
            gk_f c = GK_R(0.5) * (gk_load(cov, 3 * i + k) + gk_load(cov, 3 * k + i));
            v[i] += c * s.t[k];
            v[3 + i] += c * s.t[3 + k];
        }
    }
    s.a = s.t[0] * v[0] + s.t[1] * v[1] + s.t[2] * v[2] + blur;
    s.b = s.t[0] * v[3] + s.t[1] * v[4] + s.t[2] * v[5];
    s.c = s.t[3] * v[3] + s.t[4] * v[4] + s.t[5] * v[5] + blur;
    return s;
}

// Units: REALS
/* means [n, 3], cov [n, 3, 3], view [4, 4], camera [3, 3]. What is not before the camera, or not on the image, has radius 0 and zeros. Launch:
 * grid-stride over Gaussians. */
GK_KERNEL(project_gaussians)(GK_IN(gk_t, means), GK_IN(gk_t, cov), GK_IN(gk_t, view), GK_IN(gk_t, camera), GK_OUT(gk_t, centers),
                             GK_OUT(gk_t, conics), GK_OUT(gk_t, depths), GK_OUT(int, radii), gk_i64 n, gk_f width, gk_f height, gk_f close,
                             gk_f blur)
{
    GK_BIND_IN(gk_t, means); GK_BIND_IN(gk_t, cov); GK_BIND_IN(gk_t, view); GK_BIND_IN(gk_t, camera); GK_BIND_OUT(gk_t, centers);
    GK_BIND_OUT(gk_t, conics); GK_BIND_OUT(gk_t, depths); GK_BIND_OUT(int, radii);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        gk_projected s = gk_project(means + 3 * i, cov + 9 * i, view, camera, width, height, blur);
        gk_f x = gk_load(camera, 0) * s.slope[0] + gk_load(camera, 2), y = gk_load(camera, 4) * s.slope[1] + gk_load(camera, 5);
        gk_f det = s.a * s.c - s.b * s.b, apart = GK_R(0.5) * (s.a - s.c);
        gk_f radius = gk_ceil(GK_R(3.0) * gk_sqrt(GK_R(0.5) * (s.a + s.c) + gk_sqrt(apart * apart + s.b * s.b)));
        int seen = s.p[2] > close && det > GK_R(0.0) && radius < GK_R(1e9) && x + radius > GK_R(0.0) && x - radius < width &&
                   y + radius > GK_R(0.0) && y - radius < height;
        gk_store(centers, 2 * i, seen ? x : GK_R(0.0));
        gk_store(centers, 2 * i + 1, seen ? y : GK_R(0.0));
        gk_store(conics, 3 * i, seen ? s.c / det : GK_R(0.0));
        gk_store(conics, 3 * i + 1, seen ? -s.b / det : GK_R(0.0));
        gk_store(conics, 3 * i + 2, seen ? s.a / det : GK_R(0.0));
        gk_store(depths, i, seen ? s.p[2] : GK_R(0.0));
        radii[i] = seen ? (int)radius : 0;
    }
}

GK_FN gk_f gk_optional(GK_GLOBAL const gk_t* p, gk_i64 i) { return p ? gk_load(p, i) : GK_R(0.0); }

GK_FN void gk_put_gradient(GK_GLOBAL gk_t* p, gk_i64 i, gk_f d, int accumulate) { gk_store(p, i, accumulate ? gk_load(p, i) + d : d); }

/* The gradients of S, h (aa, ab twice, cc), from those of its inverse, of which the one beside the diagonal is given once. */
GK_FN void gk_inverse_gradient(gk_projected s, GK_GLOBAL const gk_t* dconics, gk_i64 i, gk_f* h)
{
    gk_f det = s.a * s.c - s.b * s.b, p = s.c / det, q = -s.b / det, r = s.a / det;
    gk_f da = gk_optional(dconics, 3 * i), db = GK_R(0.5) * gk_optional(dconics, 3 * i + 1), dc = gk_optional(dconics, 3 * i + 2);
    gk_f u = da * p + db * q, v = da * q + db * r, w = db * p + dc * q, x = db * q + dc * r;
    h[0] = -(p * u + q * w);
    h[1] = -(p * v + q * x);
    h[2] = -(q * v + r * x);
}

/* The gradients of a place before the camera, dp, from those of the projection and dt, that of T. */
GK_FN void gk_place_gradient(gk_projected s, GK_GLOBAL const gk_t* view, GK_GLOBAL const gk_t* camera, const gk_f* dt, gk_f du, gk_f dv, gk_f dz,
                             gk_f* dp)
{
    gk_f z = s.p[2], f[2], d[2];
    f[0] = gk_load(camera, 0);
    f[1] = gk_load(camera, 4);
    d[0] = du;
    d[1] = dv;
    dp[2] = dz;
    GK_UNROLL for (int i = 0; i < 2; i++) {
        gk_f diagonal = GK_R(0.0), last = GK_R(0.0);
        GK_UNROLL for (int k = 0; k < 3; k++) {
            diagonal += dt[3 * i + k] * gk_load(view, 4 * i + k);
            last += dt[3 * i + k] * gk_load(view, 8 + k);
        }
        /* The slope: of the centre, and of J where it is not held. */
        gk_f slope = f[i] * d[i] - (s.held[i] == s.slope[i] ? f[i] / z * last : GK_R(0.0));
        dp[i] = slope / z;
        dp[2] += (f[i] * (s.held[i] * last - diagonal) / z - slope * s.slope[i]) / z;
    }
}

/* Gradients that are null are not wanted; `add`: which of dmeans, dcov accumulate. Launch: grid-stride over Gaussians. */
GK_KERNEL(project_gaussians_bwd)(GK_IN(gk_t, dcenters), GK_IN(gk_t, dconics), GK_IN(gk_t, ddepths), GK_IN(gk_t, means), GK_IN(gk_t, cov),
                                 GK_IN(gk_t, view), GK_IN(gk_t, camera), GK_IN(int, radii), GK_OUT(gk_t, dmeans), GK_OUT(gk_t, dcov), gk_i64 n,
                                 gk_f width, gk_f height, gk_f blur, int add)
{
    GK_BIND_IN(gk_t, dcenters); GK_BIND_IN(gk_t, dconics); GK_BIND_IN(gk_t, ddepths); GK_BIND_IN(gk_t, means); GK_BIND_IN(gk_t, cov);
    GK_BIND_IN(gk_t, view); GK_BIND_IN(gk_t, camera); GK_BIND_IN(int, radii); GK_BIND_OUT(gk_t, dmeans); GK_BIND_OUT(gk_t, dcov);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) {
        int seen = radii[i] > 0;
        gk_f h[3], dt[6], dp[3];
        gk_projected s = gk_project(means + 3 * i, cov + 9 * i, view, camera, width, height, blur);
        gk_inverse_gradient(s, dconics, i, h);
        GK_UNROLL for (int r = 0; r < 3; r++) {
            gk_f u = GK_R(0.0), v = GK_R(0.0);
            GK_UNROLL for (int k = 0; k < 3; k++) {
                gk_f both = gk_load(cov, 9 * i + 3 * r + k) + gk_load(cov, 9 * i + 3 * k + r);
                u += both * s.t[k];
                v += both * s.t[3 + k];
                gk_f d = h[0] * s.t[r] * s.t[k] + h[1] * (s.t[r] * s.t[3 + k] + s.t[3 + r] * s.t[k]) + h[2] * s.t[3 + r] * s.t[3 + k];
                if (dcov) gk_put_gradient(dcov, 9 * i + 3 * r + k, seen ? d : GK_R(0.0), add & 2);
            }
            dt[r] = h[0] * u + h[1] * v;
            dt[3 + r] = h[1] * u + h[2] * v;
        }
        gk_place_gradient(s, view, camera, dt, gk_optional(dcenters, 2 * i), gk_optional(dcenters, 2 * i + 1), gk_optional(ddepths, i), dp);
        GK_UNROLL for (int k = 0; k < 3; k++) {
            gk_f d = gk_load(view, k) * dp[0] + gk_load(view, 4 + k) * dp[1] + gk_load(view, 8 + k) * dp[2];
            if (dmeans) gk_put_gradient(dmeans, 3 * i + k, seen ? d : GK_R(0.0), add & 1);
        }
    }
}

/* ---- image ----------------------------------------------------------------------------------------------------------------------- */

/* Side of a tile, channels per thread. */
#define GK_SPLAT_SIDE 16
#define GK_SPLAT_CHANNELS 4
#define GK_SPLAT_LEAST (GK_R(1.0) / GK_R(255.0))
#define GK_SPLAT_MOST GK_R(0.99)
#define GK_SPLAT_END GK_R(1e-4)

/* A Gaussian on the image: centre, conic, opacity. */
typedef struct { gk_f x, y, a, b, c, o; } gk_splat;

/* Whether it may count in a pixel whose middle is in a rectangle: where o exp(-s) is 1/255, s is log(255 o), and the ellipse reaches sqrt(2 s V_xx)
 * to the sides; with something added for roundings. */
GK_FN int gk_splat_reaches(gk_splat s, gk_f left, gk_f top, gk_f right, gk_f bottom)
{
    gk_f det = s.a * s.c - s.b * s.b, far = GK_R(2.0) * gk_log(GK_R(255.0) * s.o);
    if (!(det > GK_R(0.0) && s.a > GK_R(0.0) && far >= GK_R(0.0))) return 0;
    gk_f w = GK_R(1.05) * gk_sqrt(far * s.c / det) + GK_R(0.01), h = GK_R(1.05) * gk_sqrt(far * s.a / det) + GK_R(0.01);
    return s.x + w >= left && s.x - w <= right && s.y + h >= top && s.y - h <= bottom;
}

/* Of the Gaussians at places `at` of the order, one per thread (-1: none), those that reach the tile at (left, top), in the order of the threads:
 * themselves, their places, their numbers; how many. `keep`: whether the thread's does. */
GK_FN int gk_gather_splats(GK_LOCAL_PTR gk_splat* list, GK_LOCAL_PTR int* place, GK_LOCAL_PTR int* number, GK_LOCAL_PTR gk_u32* tmp,
                           GK_GLOBAL const gk_t* centers, GK_GLOBAL const gk_t* conics, GK_GLOBAL const gk_t* opacities, GK_GLOBAL const int* radii,
                           GK_GLOBAL const int* order, gk_i64 at, gk_f left, gk_f top, int* keep)
{
    gk_splat s;
    gk_i64 i = 0;
    gk_u32 total, to;
    *keep = 0;
    s.x = s.y = s.a = s.b = s.c = s.o = GK_R(0.0);
    if (at >= 0) {
        i = order[at];
        if (radii[i] > 0) {
            s.x = gk_load(centers, 2 * i);
            s.y = gk_load(centers, 2 * i + 1);
            s.a = gk_load(conics, 3 * i);
            s.b = gk_load(conics, 3 * i + 1);
            s.c = gk_load(conics, 3 * i + 2);
            s.o = gk_load(opacities, i);
            *keep = gk_splat_reaches(s, left, top, left + (gk_f)GK_SPLAT_SIDE, top + (gk_f)GK_SPLAT_SIDE);
        }
    }
    to = gk_block_scan((gk_u32)*keep, tmp, &total);
    if (*keep) {
        list[to - 1u] = s;
        place[to - 1u] = (int)at;
        number[to - 1u] = (int)i;
    }
    GK_BARRIER();
    return (int)total;
}

/* exp(-s) of a Gaussian in a pixel. */
GK_FN gk_f gk_splat_part(gk_splat s, gk_f x, gk_f y)
{
    gk_f dx = x - s.x, dy = y - s.y;
    return gk_exp(GK_R(-0.5) * (s.a * dx * dx + s.c * dy * dy) - s.b * dx * dy);
}

/* The middle of the thread's pixel of a tile. */
typedef struct { gk_f left, top, x, y; gk_i64 at; } gk_splat_pixel;

GK_FN gk_splat_pixel gk_splat_pixel_of(gk_i64 tile, gk_i64 across, gk_i64 width, gk_i64 height)
{
    gk_splat_pixel p;
    gk_i64 left = tile % across * GK_SPLAT_SIDE, top = tile / across * GK_SPLAT_SIDE;
    gk_i64 x = left + gk_lid() % GK_SPLAT_SIDE, y = top + gk_lid() / GK_SPLAT_SIDE;
    p.left = (gk_f)left;
    p.top = (gk_f)top;
    p.x = (gk_f)x + GK_R(0.5);
    p.y = (gk_f)y + GK_R(0.5);
    p.at = x < width && y < height ? y * width + x : -1;
    return p;
}

/* centers [n, 2], conics [n, 3], opacities, radii [n], colors [n, channels]; order: by depth. image [height, width, channels] may be null; light
 * [height, width]: what is left of it; last: 1 + the place in the order of the last Gaussian that counts, may be null. Launch: blocks, which loop
 * over tiles and groups of channels. */
GK_KERNEL(rasterize_gaussians)(GK_IN(gk_t, centers), GK_IN(gk_t, conics), GK_IN(gk_t, colors), GK_IN(gk_t, opacities), GK_IN(int, radii),
                               GK_IN(int, order), GK_OUT(gk_t, image), GK_OUT(gk_t, light), GK_OUT(int, last), gk_i64 n, gk_i64 width, gk_i64 height,
                               gk_i64 channels, gk_i64 groups)
{
    GK_BIND_IN(gk_t, centers); GK_BIND_IN(gk_t, conics); GK_BIND_IN(gk_t, colors); GK_BIND_IN(gk_t, opacities); GK_BIND_IN(int, radii);
    GK_BIND_IN(int, order); GK_BIND_OUT(gk_t, image); GK_BIND_OUT(gk_t, light); GK_BIND_OUT(int, last);
    GK_LOCAL gk_splat list[GK_BLOCK];
    GK_LOCAL int place[GK_BLOCK];
    GK_LOCAL int number[GK_BLOCK];
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    gk_i64 across = (width + GK_SPLAT_SIDE - 1) / GK_SPLAT_SIDE, tiles = across * ((height + GK_SPLAT_SIDE - 1) / GK_SPLAT_SIDE);
    for (gk_i64 w = gk_bid(0); w < tiles * groups; w += gk_nblocks(0)) {
        gk_splat_pixel p = gk_splat_pixel_of(w % tiles, across, width, height);
        gk_i64 first = w / tiles * GK_SPLAT_CHANNELS;
        gk_f t = GK_R(1.0), sum[GK_SPLAT_CHANNELS];
        int end = 0, keep;
        gk_u32 open = p.at >= 0 ? 1u : 0u, any;
        GK_UNROLL for (int u = 0; u < GK_SPLAT_CHANNELS; u++) sum[u] = GK_R(0.0);
        for (gk_i64 base = 0; base < n; base += GK_BLOCK) {
            gk_i64 at = base + gk_lid();
            int count = gk_gather_splats(list, place, number, tmp, centers, conics, opacities, radii, order, at < n ? at : -1, p.left, p.top,
                                         &keep);
            for (int j = 0; j < count && open; j++) {
                gk_splat s = list[j];
                gk_f alpha = s.o * gk_splat_part(s, p.x, p.y), next;
                if (!(alpha >= GK_SPLAT_LEAST)) continue;
                if (alpha > GK_SPLAT_MOST) alpha = GK_SPLAT_MOST;
                next = t * (GK_R(1.0) - alpha);
                if (next < GK_SPLAT_END) {
                    open = 0u;
                } else {
                    GK_UNROLL for (int u = 0; u < GK_SPLAT_CHANNELS; u++)
                        if (first + u < channels) sum[u] += alpha * t * gk_load(colors, number[j] * channels + first + u);
                    t = next;
                    end = place[j] + 1;
                }
            }
            gk_block_scan(open, tmp, &any);
            if (any == 0u) break;
        }
        GK_BARRIER();
        if (p.at < 0) continue;
        if (image) {
            GK_UNROLL for (int u = 0; u < GK_SPLAT_CHANNELS; u++)
                if (first + u < channels) gk_store(image, p.at * channels + first + u, sum[u]);
        }
        if (first == 0) {
            gk_store(light, p.at, t);
            if (last) last[p.at] = end;
        }
    }
}

/* Values that are summed at a time. The gradient of a Gaussian has 6 + channels: centre, conic, opacity, colours. */
#define GK_SPLAT_VALUES 8

/* The sums over the block of some values of each thread, into to[0 .. count). */
GK_FN void gk_splat_sums(GK_LOCAL_PTR gk_f* tmp, const gk_f* v, GK_GLOBAL gk_f* to, int count)
{
    int t = gk_lid();
    GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++) tmp[u * GK_BLOCK + t] = v[u];
    GK_BARRIER();
    for (int m = GK_BLOCK / 2; m > 0; m >>= 1) {
        if (t < m) {
            GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++) tmp[u * GK_BLOCK + t] += tmp[u * GK_BLOCK + t + m];
        }
        GK_BARRIER();
    }
    if (t < count) to[t] = tmp[t * GK_BLOCK];
    GK_BARRIER();
}

/* What a pixel adds to the gradient of a Gaussian, but for colours: v[0 .. 6), and its weight. t and behind are the light that reaches what is
 * farther and B of it; they become those of this one. g = dy . color. */
GK_FN gk_f gk_splat_gradient(gk_splat s, gk_f x, gk_f y, gk_f g, gk_f* t, gk_f* behind, gk_f* v)
{
    gk_f part = gk_splat_part(s, x, y), alpha = s.o * part, dx = x - s.x, dy = y - s.y;
    if (!(alpha >= GK_SPLAT_LEAST)) return GK_R(0.0);
    int held = alpha > GK_SPLAT_MOST;
    if (held) alpha = GK_SPLAT_MOST;
    *t /= GK_R(1.0) - alpha;
    gk_f weight = alpha * *t, dalpha = *t * g - *behind / (GK_R(1.0) - alpha), ds = held ? GK_R(0.0) : -dalpha * alpha;
    *behind += g * weight;
    v[0] = -ds * (s.a * dx + s.b * dy);
    v[1] = -ds * (s.b * dx + s.c * dy);
    v[2] = GK_R(0.5) * ds * dx * dx;
    v[3] = ds * dx * dy;
    v[4] = GK_R(0.5) * ds * dy * dy;
    v[5] = held ? GK_R(0.0) : dalpha * part;
    return weight;
}

/* For the Gaussians at places [from, to) of the order, from the last to the first: what the pixels of each tile add to the gradient, part [to - from,
 * tiles, 6 + channels], where flags [to - from, tiles] is not 0. light and behind [height, width] go from call to call; before the first they are
 * what is left of the light and the gradient of that times it. Launch: blocks, which loop over tiles. */
GK_KERNEL(rasterize_gaussians_bwd)(GK_IN(gk_t, dy), GK_IN(gk_t, centers), GK_IN(gk_t, conics), GK_IN(gk_t, colors), GK_IN(gk_t, opacities),
                                   GK_IN(int, radii), GK_IN(int, order), GK_IN(int, last), GK_OUT(gk_f, light), GK_OUT(gk_f, behind),
                                   GK_OUT(gk_f, part), GK_OUT(gk_u8, flags), gk_i64 from, gk_i64 to, gk_i64 width, gk_i64 height, gk_i64 channels)
{
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, centers); GK_BIND_IN(gk_t, conics); GK_BIND_IN(gk_t, colors); GK_BIND_IN(gk_t, opacities);
    GK_BIND_IN(int, radii); GK_BIND_IN(int, order); GK_BIND_IN(int, last); GK_BIND_OUT(gk_f, light); GK_BIND_OUT(gk_f, behind);
    GK_BIND_OUT(gk_f, part); GK_BIND_OUT(gk_u8, flags);
    GK_LOCAL gk_splat list[GK_BLOCK];
    GK_LOCAL int place[GK_BLOCK];
    GK_LOCAL int number[GK_BLOCK];
    GK_LOCAL gk_u32 tmp[GK_BLOCK];
    GK_LOCAL gk_f sums[GK_BLOCK * GK_SPLAT_VALUES];
    gk_i64 across = (width + GK_SPLAT_SIDE - 1) / GK_SPLAT_SIDE, tiles = across * ((height + GK_SPLAT_SIDE - 1) / GK_SPLAT_SIDE);
    gk_i64 all = 6 + channels;
    for (gk_i64 tile = gk_bid(0); tile < tiles; tile += gk_nblocks(0)) {
        gk_splat_pixel p = gk_splat_pixel_of(tile, across, width, height);
        gk_f t = p.at >= 0 ? light[p.at] : GK_R(1.0), later = p.at >= 0 ? behind[p.at] : GK_R(0.0);
        int end = p.at >= 0 ? last[p.at] : 0, keep;
        for (gk_i64 base = to; base > from; base -= GK_BLOCK) {
            gk_i64 at = base - 1 - gk_lid();
            int count = gk_gather_splats(list, place, number, tmp, centers, conics, opacities, radii, order, at >= from ? at : -1, p.left, p.top,
                                         &keep);
            if (at >= from) flags[(at - from) * tiles + tile] = (gk_u8)keep;
            for (int j = 0; j < count; j++) {
                gk_f v[GK_SPLAT_VALUES], weight = GK_R(0.0), g = GK_R(0.0);
                gk_i64 color = (gk_i64)number[j] * channels;
                GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++) v[u] = GK_R(0.0);
                if (place[j] < end) {
                    for (gk_i64 c = 0; c < channels; c++) g += gk_optional(dy, p.at * channels + c) * gk_load(colors, color + c);
                    weight = gk_splat_gradient(list[j], p.x, p.y, g, &t, &later, v);
                }
                for (gk_i64 first = 0; first < all; first += GK_SPLAT_VALUES) {
                    GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++) {
                        gk_i64 c = first + u - 6;
                        if (c >= 0) v[u] = c < channels && weight != GK_R(0.0) ? weight * gk_optional(dy, p.at * channels + c) : GK_R(0.0);
                    }
                    gk_splat_sums(sums, v, part + ((place[j] - from) * tiles + tile) * all + first,
                                  all - first < GK_SPLAT_VALUES ? (int)(all - first) : GK_SPLAT_VALUES);
                }
            }
            GK_BARRIER();
        }
        if (p.at >= 0) {
            light[p.at] = t;
            behind[p.at] = later;
        }
    }
}

/* The gradients of the Gaussians at places [from, from + count) of the order, summed over tiles by 32 threads each. `add`: which of dcenters,
 * dconics, dcolors, dopacities accumulate; those that are null are not wanted. Launch: blocks, which loop over Gaussians, 8 each. */
GK_KERNEL(rasterize_gaussians_fold)(GK_IN(gk_f, part), GK_IN(gk_u8, flags), GK_IN(int, order), GK_OUT(gk_t, dcenters), GK_OUT(gk_t, dconics),
                                    GK_OUT(gk_t, dcolors), GK_OUT(gk_t, dopacities), gk_i64 from, gk_i64 count, gk_i64 tiles, gk_i64 channels,
                                    int add)
{
    GK_BIND_IN(gk_f, part); GK_BIND_IN(gk_u8, flags); GK_BIND_IN(int, order); GK_BIND_OUT(gk_t, dcenters); GK_BIND_OUT(gk_t, dconics);
    GK_BIND_OUT(gk_t, dcolors); GK_BIND_OUT(gk_t, dopacities);
    GK_LOCAL gk_f tmp[GK_BLOCK];
    gk_i64 all = 6 + channels;
    int lane = gk_lid() % 32;
    for (gk_i64 b = gk_bid(0); b * 8 < count; b += gk_nblocks(0)) {
        gk_i64 at = b * 8 + gk_lid() / 32, i = at < count ? order[from + at] : 0;
        for (gk_i64 first = 0; first < all; first += GK_SPLAT_VALUES) {
            gk_f sum[GK_SPLAT_VALUES];
            GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++) sum[u] = GK_R(0.0);
            for (gk_i64 tile = lane; at < count && tile < tiles; tile += 32) {
                if (!flags[at * tiles + tile]) continue;
                GK_UNROLL for (int u = 0; u < GK_SPLAT_VALUES; u++)
                    if (first + u < all) sum[u] += part[(at * tiles + tile) * all + first + u];
            }
            for (int u = 0; u < GK_SPLAT_VALUES; u++) {
                gk_f d = gk_group_sum(sum[u], tmp, 32);
                gk_i64 c = first + u;
                if (lane > 0 || at >= count || c >= all) continue;
                if (c < 2 && dcenters) gk_put_gradient(dcenters, 2 * i + c, d, add & 1);
                if (c >= 2 && c < 5 && dconics) gk_put_gradient(dconics, 3 * i + c - 2, d, add & 2);
                if (c == 5 && dopacities) gk_put_gradient(dopacities, i, d, add & 8);
                if (c > 5 && dcolors) gk_put_gradient(dcolors, i * channels + c - 6, d, add & 4);
            }
        }
    }
}

/* behind = light times its gradient, which may be null: B of what is behind all Gaussians. Launch: grid-stride. */
GK_KERNEL(rasterize_gaussians_rest)(GK_IN(gk_t, light), GK_IN(gk_t, dlight), GK_OUT(gk_f, behind), gk_i64 n)
{
    GK_BIND_IN(gk_t, light); GK_BIND_IN(gk_t, dlight); GK_BIND_OUT(gk_f, behind);
    for (gk_i64 i = gk_gid(); i < n; i += gk_gsize()) behind[i] = gk_load(light, i) * gk_optional(dlight, i);
}
