/* The implicit products of convolutions on matrix cores: copies of stages to local memory, the products of a tile, and its results. Included by matrix.c,
 * whose operands are gk_t, and by matrix_bf16x6.c, whose operands are three numbers of gk_t, the parts of a float. They define before:
 *
 *   GK_CONV_PARTS               the parts of an operand: 1 or 3, one behind the other, in memory and in a stage
 *   GK_CONV_STAGES(rows)        stages in local memory, 2 or 3, of a tile of 64 or 128 rows
 *   GK_CONV_PLACES(rows)        places of a tile
 *   gk_result                   the type of what is not multiplied, in memory
 *   gk_sums                     a thread's sums; those of a warp are 16 rows by 128 columns in the end, in .c
 *   gk_conv_multiply(&sums, stage, rows, by)    begins to add the products of a stage, whose right operand has (by) a row per term, not per column
 *   gk_conv_products_wait(&sums, n)             waits for those of the stages before number n
 *   gk_conv_join(&sums, room)                   ends the sums, where halves of the warps had parts of the same in the first half
 */
#define GK_CONV_TERMS 64
/* Columns of sums that wait in local memory for the epilogue, and the distance of their rows. */
#define GK_CONV_SPILL 64
#define GK_CONV_PITCH 68

/* Waits for the copies of a stage, with one more stage queued behind it or (of two stages) none. */
GK_FN void gk_conv_copies_wait(const int stages)
{
    if (stages == 3) { GK_COPY_WAIT(1); }
    else { GK_COPY_WAIT(0); }
}

/* Operands, those that are not needed null, and the parameters of the kernels. */
typedef struct {
    GK_GLOBAL const gk_t *x, *wt;
    GK_GLOBAL const gk_result *scale, *bias, *residual;
    GK_GLOBAL gk_result *y, *z;
    gk_dims map, out, win, geo;
    gk_f p;
    int wide, accumulate, act;
} gk_conv;

/* The thread's term of a stage: its channel, the number of its tap along the axes, and of all terms. */
typedef struct { int channel, d, h, w, term; } gk_walk;

/* On by n terms: a stage, or to the thread's chunk of the first one. Divisions would take longer than the products. */
GK_FN void gk_walk_on(gk_walk* t, int n, const gk_windows* a, int channels)
{
    t->term += n;
    for (t->channel += n; t->channel >= channels; t->channel -= channels) {
        int end = ++t->w == a->w.count;
        if (end) t->w = 0;
        end = end && ++t->h == a->h.count;
        if (end) { t->h = 0; t->d++; }
    }
}

/* Queues the copy of the stage of `terms` at which `t` stands: of weights, rows m0 ..., of which `have` exist, and of the tile's windows. */
GK_FN void gk_conv_fetch(const gk_conv* v, const gk_windows* a, const gk_window* at, const gk_walk* t, int terms, int m0, int have, int channels,
                         const int rows, const int back, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, r = gk_lid() / 8, within = t->term < terms, from = t->term;
    gk_i64 line = v->win.v[0] * v->win.v[1] * v->win.v[2] * channels;
    gk_window offset;
    offset.d = t->d * a->d.dilation; offset.h = t->h * a->h.dilation; offset.w = t->w * a->w.dilation;
    offset.element = gk_element(offset.d, offset.h, offset.w, v->map);
    if (back) {
        int tap = ((a->d.first + t->d * a->d.step) * (int)v->win.v[1] + a->h.first + t->h * a->h.step) * (int)v->win.v[2] + a->w.first + t->w * a->w.step;
        from = tap * channels + t->channel;
    }
    GK_GLOBAL const gk_t *x = v->x + t->channel, *wt = v->wt + m0 * line + from;
    GK_UNROLL for (int part = 0; part < GK_CONV_PARTS; part++) {
        GK_UNROLL for (int i = 0; i < rows / 32; i++) {
            int row = r + 32 * i;
            gk_copy16(to + gk_chunk_at(row, c, rows), wt + row * line, within && row < have);
        }
        to += rows * 8;
        wt += v->out.v[3] * line;
        GK_UNROLL for (int i = 0; i < GK_CONV_PLACES(rows) / 32; i++) {
            int place = r + 32 * i;
            gk_copy16(to + place / 128 * 1024 + gk_chunk_at(place % 128, c, 128), x + (at[i].element + offset.element),
                      within && gk_meets(at[i], offset, v->map));
        }
        to += GK_CONV_PLACES(rows) * 8;
        x += gk_elements(v->map);
    }
}

/* Results of a tile at row m0 and place q0, by runs of four places that lie in local memory meanwhile. `part`: number of the matrix of partial sums
 * that they go to, of out.v[7] places, below 0 where they are whole. */
GK_FN void gk_conv_finish(const gk_conv* v, const gk_windows* a, float (*sums)[4], int m0, int q0, int part, const int rows, const int back,
                          GK_LOCAL_PTR float* spill)
{
    int count = a->places * (int)v->map.v[4], row0 = gk_lid() / 32 * 16, apart = back && (v->win.v[3] > 1 || v->win.v[4] > 1 || v->win.v[5] > 1);
    gk_i64 plane = v->out.v[0] * v->out.v[1] * v->out.v[2];
    if (part >= 0) plane = v->out.v[7];
    GK_UNROLL for (int first = 0; first < 128; first += GK_CONV_SPILL) {
        GK_BARRIER();
        GK_UNROLL for (int j = 0; j < GK_CONV_SPILL / 8; j++) {
            GK_UNROLL for (int e = 0; e < 4; e++)
                if (row0 < rows * GK_CONV_PLACES(rows) / 128) spill[(row0 + GK_FRAG_ROW(e)) * GK_CONV_PITCH + 8 * j + GK_FRAG_COL(e)] = sums[first / 8 + j][e];
        }
        GK_BARRIER();
        /* A thread has the same places in every 16th row. */
        GK_UNROLL for (int side = 0; side < GK_CONV_PLACES(rows) / 128; side++) {
            int q = q0 + side * 128 + first + gk_lid() % 16 * 4, left = count - q < 4 ? count - q : 4, m = m0 + gk_lid() / 16;
            gk_place p = gk_place_of(q, a);
            gk_i64 to[4];
            GK_UNROLL for (int u = 0; u < 4; u++) {
                int d = a->d.phase + p.d * (int)v->win.v[3], h = a->h.phase + p.h * (int)v->win.v[4], w = a->w.phase + p.w * (int)v->win.v[5];
                if (!apart) { d = p.d; h = p.h; w = p.w; }
                to[u] = (p.n * v->out.v[3] + m) * plane + ((gk_i64)d * v->out.v[1] + h) * v->out.v[2] + w;
                if (part >= 0) to[u] = (part * v->out.v[3] + m) * plane + q + u;
                gk_place_on(&p, 1, a);
            }
            if (left <= 0) continue;
            for (int line = gk_lid() / 16; line < rows && m < v->out.v[3]; line += 16, m += 16) {
                gk_raw16 r = *(GK_LOCAL_PTR const gk_raw16*)(spill + (side * rows + line) * GK_CONV_PITCH + gk_lid() % 16 * 4);
                gk_four x;
                x.v[0] = gk_as_f32(r.x); x.v[1] = gk_as_f32(r.y); x.v[2] = gk_as_f32(r.z); x.v[3] = gk_as_f32(r.w);
                gk_conv_store(x, to, left, v->wide, m, v->scale, v->bias, v->residual, v->y, v->z, v->accumulate, v->act, v->p);
                GK_UNROLL for (int u = 0; u < 4; u++) to[u] += 16 * plane;
            }
        }
    }
}

/* A tile of `rows` rows and GK_CONV_PLACES(rows) places: all stages, or a run of out.v[6] of them. */
GK_FN void gk_conv_tile(const gk_conv* v, const int back, const int rows, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int places = GK_CONV_PLACES(rows), chunks = GK_CONV_PARTS * (rows + places) * 8, ahead = GK_CONV_STAGES(rows) - 1;
    int number = (int)(gk_bid(0) / v->out.v[4]), part = number / (int)v->out.v[5], q0 = number % (int)v->out.v[5] * places;
    int m0 = (int)(gk_bid(0) % v->out.v[4]) * rows, have = (int)v->out.v[3] - m0;
    int phases = back ? (int)(v->win.v[3] * v->win.v[4] * v->win.v[5]) : 1, run = part / phases, per = (int)v->out.v[6];
    gk_windows a = gk_windows_of(part - run * phases, v->out, v->win, v->geo, back);
    int channels = (int)v->map.v[3];
    gk_walk t = {0, 0, 0, 0, 0};
    /* Behind the last place there is nothing to do. */
    int terms = q0 < a.places * (int)v->map.v[4] ? a.taps * channels : 0, stages = (terms + GK_CONV_TERMS - 1) / GK_CONV_TERMS;
    if (per > 0) stages = stages - run * per < per ? stages - run * per : per;
    gk_sums sums;
    gk_window at[8];
    GK_UNROLL for (int i = 0; i < places / 32; i++) at[i] = gk_window_at(gk_place_of(q0 + gk_lid() / 8 + 32 * i, &a), &a, v->map);
    gk_conv_clear(&sums);
    gk_walk_on(&t, run * per * GK_CONV_TERMS + gk_lid() % 8 * GK_PER_CHUNK, &a, channels);
    for (int n = -ahead; n < stages; n++) {
        int next = n + ahead;
        if (n >= 0) {
            gk_conv_copies_wait(ahead + 1);
            GK_BARRIER();
            gk_conv_multiply(&sums, tiles + n % (ahead + 1) * chunks, rows, 0);
            /* The stage before is done; the next one takes its place while this one is multiplied. */
            gk_conv_products_wait(&sums, n);
            GK_BARRIER();
        }
        if (next < stages) gk_conv_fetch(v, &a, at, &t, terms, m0, have, channels, rows, back, tiles + next % (ahead + 1) * chunks);
        gk_walk_on(&t, GK_CONV_TERMS, &a, channels);
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_conv_join(&sums, (GK_LOCAL_PTR float*)tiles);
    gk_conv_finish(v, &a, sums.c, m0, q0, per > 0 ? part : -1, rows, back, (GK_LOCAL_PTR float*)tiles);
}

/* ---- weight gradient --------------------------------------------------------------------------------------------------------------------- */

/* dy: elements from row to row, from image to image and from part to part, and places of an image that lie side by side. */
typedef struct { gk_i64 line, image, part; gk_divisor run; } gk_rows_of_dy;

/* Queues the copy of a stage: of dy, rows m0 ... and places from k on, and of x at the column's tap and channels; p is the place of the thread's first
 * term, and moves on to that of the next stage. */
GK_FN void gk_weight_fetch(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, int k, int end, int have, gk_rows_of_dy rows, gk_window tap, int column,
                           gk_place* p, const gk_windows* a, gk_dims map, const int high, GK_LOCAL_PTR gk_raw16* to)
{
    int c = gk_lid() % 8, at = k + c * GK_PER_CHUNK, n = gk_divide(at, rows.run);
    GK_GLOBAL const gk_t* from = dy + n * rows.image + (at - n * rows.run.d);
    GK_UNROLL for (int i = 0; i < high / 32; i++) {
        int row = gk_lid() / 8 + 32 * i, exists = at < end && row < have;
        GK_UNROLL for (int part = 0; part < GK_CONV_PARTS; part++)
            gk_copy16(to + part * (high + 128) * 8 + gk_chunk_at(row, c, high), exists ? from + (row * rows.line + part * rows.part) : dy, exists);
    }
    to += high * 8;
    GK_UNROLL for (int i = 0; i < 4; i++) {
        int term = gk_lid() / 16 + 16 * i;
        gk_window at = gk_window_at(*p, a, map);
        GK_GLOBAL const gk_t* from = x + (at.element + tap.element + column);
        int exists = k + term < end && column >= 0 && gk_meets(at, tap, map);
        GK_UNROLL for (int part = 0; part < GK_CONV_PARTS; part++)
            gk_copy16(to + part * (high + 128) * 8 + gk_chunk_at(term, gk_lid() % 16, GK_CONV_TERMS), from + part * gk_elements(map), exists);
        gk_place_on(p, 16, a);
    }
}

/* part [splits, m, c, t]: a block has `high` rows, 128 columns (t, c; c below C) and `per` places. size = {column tiles, places per split, c, places of a
 * run, elements from row to row, from image to image and from part to part of dy, 0 or 4 x taps across + `fold` of gk_tap_folded}.
 * Launch: axis 0 = row tiles (fastest) x column tiles x splits. */
GK_FN void gk_weight_tile(GK_GLOBAL const gk_t* x, GK_GLOBAL const gk_t* dy, GK_GLOBAL gk_f* part, gk_dims map, gk_dims out, gk_dims win, gk_dims geo,
                          gk_dims size, const int high, GK_LOCAL_PTR gk_raw16* tiles)
{
    const int chunks = GK_CONV_PARTS * (high + 128) * 8, ahead = GK_CONV_STAGES(high) - 1;
    int rest = (int)(gk_bid(0) / out.v[4]), m0 = (int)(gk_bid(0) % out.v[4]) * high, n0 = rest % (int)size.v[0] * 128, split = rest / (int)size.v[0];
    int channels = (int)map.v[3], taps = (int)(win.v[0] * win.v[1] * win.v[2]), r = (int)size.v[2], have = (int)out.v[3] - m0;
    int all = (int)(out.v[0] * out.v[1] * out.v[2] * map.v[4]), begin = split * (int)size.v[1];
    int end = begin + (int)size.v[1] < all ? begin + (int)size.v[1] : all, stages = (end - begin + GK_CONV_TERMS - 1) / GK_CONV_TERMS;
    int column = n0 + gk_lid() % 16 * GK_PER_CHUNK, tap = column / channels, row0 = gk_lid() / 32 * 16;
    int fold = (int)size.v[7], real = fold ? taps / (int)win.v[2] * (fold / 4) : taps;
    gk_windows a = gk_windows_of(0, out, win, geo, 0);
    gk_window offset = gk_tap_of(tap, &a, map);
    gk_place at = gk_place_of(begin + gk_lid() / 16, &a);
    gk_rows_of_dy rows;
    gk_sums sums;
    gk_conv_clear(&sums);
    rows.line = size.v[4]; rows.image = size.v[5]; rows.part = size.v[6]; rows.run = gk_divisor_of(size.v[3]);
    dy += m0 * size.v[4];
    column = tap < taps ? column - tap * channels : -1;
    for (int n = -ahead; n < stages; n++) {
        int next = n + ahead;
        if (n >= 0) {
            gk_conv_copies_wait(ahead + 1);
            GK_BARRIER();
            gk_conv_multiply(&sums, tiles + n % (ahead + 1) * chunks, high, 1);
            gk_conv_products_wait(&sums, n);
            GK_BARRIER();
        }
        if (next < stages)
            gk_weight_fetch(x, dy, begin + next * GK_CONV_TERMS, end, have, rows, offset, column, &at, &a, map, high, tiles + next % (ahead + 1) * chunks);
        GK_COPY_COMMIT();
    }
    GK_MM_WAIT(0);
    gk_conv_join(&sums, (GK_LOCAL_PTR float*)tiles);
    if (row0 >= high) return;
    GK_UNROLL for (int j = 0; j < 16; j++) {
        GK_UNROLL for (int e = 0; e < 4; e++) {
            int m = m0 + row0 + GK_FRAG_ROW(e), at = n0 + 8 * j + GK_FRAG_COL(e), t = at / channels;
            gk_tap to = gk_tap_folded(t, at - t * channels, fold / 4, fold % 4);
            if (m < out.v[3] && t < taps && to.tap >= 0 && to.channel < r)
                part[(((gk_i64)split * out.v[3] + m) * r + to.channel) * real + to.tap] = sums.c[j][e];
        }
    }
}

#define GK_CONV_BIND() \
    GK_BIND_IN(gk_t, x); GK_BIND_IN(gk_t, wt); GK_BIND_IN(gk_result, scale); GK_BIND_IN(gk_result, bias); GK_BIND_IN(gk_result, residual); \
    GK_BIND_OUT(gk_result, y); GK_BIND_OUT(gk_result, z); \
    gk_conv v; \
    v.x = x; v.wt = wt; v.scale = scale; v.bias = bias; v.residual = residual; v.y = y; v.z = z; \
    v.map = map; v.out = out; v.win = win; v.geo = geo; v.p = q_act; v.wide = wide; v.accumulate = accumulate; v.act = act

#define GK_CONV_TILE(rows) \
    if (back) gk_conv_tile(&v, 1, rows, tiles); \
    else gk_conv_tile(&v, 0, rows, tiles)
