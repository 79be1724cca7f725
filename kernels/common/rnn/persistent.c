/* All steps of a recurrent network in one kernel: every block keeps its recurrent weights in local memory, and blocks exchange what they made through global
 * memory (persistent RNNs: Diamos et al., 2016). Where the dialect has no blocks that wait for each other (GK_ORDERED_BLOCKS, prelude/ordered.h), the file is
 * empty. Names, shapes and arithmetic are those of rnn/rnn.c; all arrays are those of the whole sequence.
 *
 * A block has some columns of a state and some rows of the batch; blocks with the same rows form a group, whose members wait for each other once a step.
 * Launch: axis 0 = the columns, axis 1 = the groups, `rows` of the batch each, a multiple of 16; all blocks run at the same time (a cooperative launch).
 * `turns`, zeros before the launch, has a count of blocks every GK_TURN_STEP places, one per group. A step takes tiles of 16 rows.
 *
 * Forward a block makes all products of its columns: it reads whole states, and keeps the rows of W_hh that belong to its columns. `exchange`, zeros before the
 * launch, has two states that take turns, rounded to gk_t; a row is whole chunks of 4 floats. The terms of a product are shared out among groups of threads.
 * Backward a block multiplies the gradients of its own gates, and keeps the same rows of W_hh. What it adds to the gradients of all states goes to
 * `exchange` [2, groups, blocks that add them up, blocks that made them, rows, columns], of which two take turns.
 * Deterministic: one writer per output, sums in a fixed order.
 */
#if GK_IS_FLOAT && GK_DTYPE != GK_F64
#include "common/prelude/matrix.h"
#include "common/prelude/ordered.h"
#include "step.h"

#ifdef GK_ORDERED_BLOCKS
#undef GK_MIN_BLOCKS
#define GK_MIN_BLOCKS 1
#define GK_STEP_ROWS 16
#define GK_TURN_STEP 32
/* Chunks of a row of states in a stage, with one more, so that neighbouring rows begin in other banks; and places of the sums of a tile. */
#define GK_STATE_TERMS 64
#define GK_STATE_PITCH (GK_STATE_TERMS + 1)
#define GK_STAGES 3
#define GK_STAGE_WAIT() GK_COPY_WAIT(1)
#define GK_RING_CHUNKS (GK_STAGES * GK_STEP_ROWS * GK_STATE_PITCH)

/* ---- what both directions share ------------------------------------------------------------------------------------------------- */

/* The block's columns of a state and rows of the batch. */
typedef struct { int columns, first, b0, rows, tiles; } gk_share;

GK_FN gk_share gk_share_of(gk_i64 n, gk_i64 hidden, int columns, int rows)
{
    gk_share s;
    gk_i64 left;
    s.columns = columns;
    s.first = gk_bid(0) * columns;
    s.b0 = gk_bid(1) * rows;
    left = n / hidden - s.b0;
    s.rows = left < rows ? (int)left : rows;
    s.tiles = (s.rows + GK_STEP_ROWS - 1) / GK_STEP_ROWS;
    return s;
}

/* The thread's element of a tile: row and column of the tile, and its place in a state. A thread without one names the block's first. */
typedef struct { gk_i64 b, j, e; int row, column, exists; } gk_step_place;

GK_FN gk_step_place gk_step_at(gk_share s, int tile, gk_i64 hidden)
{
    gk_step_place p;
    int row = gk_lid() / s.columns, column = gk_lid() % s.columns;
    p.exists = row < GK_STEP_ROWS && tile * GK_STEP_ROWS + row < s.rows && s.first + column < hidden;
    p.row = p.exists ? row : 0;
    p.column = p.exists ? column : 0;
    p.b = s.b0 + (p.exists ? tile * GK_STEP_ROWS + row : 0);
    p.j = s.first + p.column;
    p.e = p.b * hidden + p.j;
    return p;
}

/* Waits before the first tile of a step until the blocks of the group have ended `turn` turns; a barrier follows. */
GK_FN void gk_step_wait(GK_GLOBAL const gk_u32* turns, int turn, int tile)
{
    if (tile == 0 && gk_lid() == 0) gk_turn_wait(turns + gk_bid(1) * GK_TURN_STEP, (gk_u32)turn * (gk_u32)gk_nblocks(0));
}

/* The block has written what others wait for. */
GK_FN void gk_step_end(GK_GLOBAL gk_u32* turns)
{
    GK_BARRIER();
    if (gk_lid() == 0) gk_turn_written(turns + gk_bid(1) * GK_TURN_STEP);
}

GK_FN void gk_floats_of(gk_raw16 q, float v[4])
{
    v[0] = gk_as_f32(q.x); v[1] = gk_as_f32(q.y); v[2] = gk_as_f32(q.z); v[3] = gk_as_f32(q.w);
}

/* A number as it is read after it was stored. */
GK_FN gk_f gk_as_stored(gk_f v)
{
#if GK_DTYPE == GK_F16
    v = gk_f16_to_f32(gk_f32_to_f16(v));
#elif GK_DTYPE == GK_BF16
    v = gk_as_f32((gk_u32)gk_f32_to_bf16(v) << 16);
#endif
    return v;
}

/* ---- forward --------------------------------------------------------------------------------------------------------------------
 * A thread multiplies 8 rows by the columns `column` + j `threads` of the block's weights, one of each gate j. */

typedef struct {
    gk_share of;
    GK_LOCAL_PTR gk_raw16* ring; /* stages of a tile */
    GK_LOCAL_PTR float* sums;    /* of the groups of threads, `pitch` apart: [gates, 16, threads] */
    GK_LOCAL_PTR gk_raw16* w;    /* a row of `stride` chunks per gate and column */
    int threads, column, part, parts;
    int chunks, stride, stages, pitch;
} gk_forward;

GK_FN gk_forward gk_forward_begin(GK_LOCAL_PTR gk_raw16* local, gk_share of, int hidden, const int gates)
{
    gk_forward s;
    int lane = gk_lid() % 32, threads = of.columns;
    s.of = of;
    s.threads = threads;
    /* Neighbouring lanes have rows 0 and 1, then other columns; with 8 columns the upper half of a warp is another group. */
    s.column = lane / 2 % threads;
    s.part = gk_lid() / 32 + lane / 2 / threads * 8;
    s.parts = GK_BLOCK / 2 / threads;
    s.chunks = (hidden + 3) / 4;
    s.stride = s.chunks | 1;
    s.stages = (s.chunks + GK_STATE_TERMS - 1) / GK_STATE_TERMS;
    s.pitch = GK_STEP_ROWS * gates * threads + 2;
    s.ring = local;
    s.sums = (GK_LOCAL_PTR float*)(local + GK_RING_CHUNKS);
    s.w = local + GK_RING_CHUNKS + (s.parts * s.pitch + 3) / 4;
    return s;
}

/* Keeps the block's weights as floats, zeros beyond rows and columns. */
GK_FN void gk_forward_keep(const gk_forward* s, GK_GLOBAL const gk_t* w, int hidden, const int gates)
{
    GK_LOCAL_PTR float* to = (GK_LOCAL_PTR float*)s->w;
    int width = 4 * s->chunks;
    for (int i = gk_lid(); i < width * gates * s->threads; i += GK_BLOCK) {
        int k = i % width, c = i / width, column = s->of.first + c % s->threads;
        gk_f v = GK_R(0.0);
        if (column < hidden && k < hidden) v = gk_load(w, ((gk_i64)(c / s->threads) * hidden + column) * hidden + k);
        to[c * s->stride * 4 + k] = v;
    }
}

/* Where the block's rows lie in the state before step `at`, and an element in them. */
GK_FN gk_i64 gk_exchange_at(const gk_forward* s, int at, gk_i64 batch) { return ((at & 1) * batch + s->of.b0) * s->chunks * 4; }
GK_FN gk_i64 gk_exchange_place(const gk_forward* s, const gk_step_place* p) { return (p->b - s->of.b0) * s->chunks * 4 + p->j; }

/* Puts the first state where the first step reads it. */
GK_FN void gk_forward_first(const gk_forward* s, GK_GLOBAL const gk_t* h, GK_GLOBAL float* x, GK_GLOBAL gk_u32* turns, gk_i64 hidden)
{
    for (int tile = 0; tile < s->of.tiles; tile++) {
        gk_step_place p = gk_step_at(s->of, tile, hidden);
        if (p.exists) x[gk_exchange_at(s, 0, 0) + gk_exchange_place(s, &p)] = gk_load(h, p.e);
    }
    gk_step_end(turns);
}

/* Queues the copy of stage number f of a step: a part of the terms of a tile's rows. */
GK_FN void gk_step_fetch(const gk_forward* s, GK_GLOBAL const float* x, int f)
{
    int tile = f / s->stages, c = f % s->stages * GK_STATE_TERMS + gk_lid() % GK_STATE_TERMS;
    GK_LOCAL_PTR gk_raw16* to = s->ring + f % GK_STAGES * (GK_STEP_ROWS * GK_STATE_PITCH) + gk_lid() % GK_STATE_TERMS;
    GK_UNROLL for (int i = 0; i < GK_STEP_ROWS * GK_STATE_TERMS / GK_BLOCK; i++) {
        int r = gk_lid() / GK_STATE_TERMS + i * (GK_BLOCK / GK_STATE_TERMS), row = tile * GK_STEP_ROWS + r;
        int exists = row < s->of.rows && c < s->chunks;
        gk_copy16(to + r * GK_STATE_PITCH, exists ? x + ((gk_i64)row * s->chunks + c) * 4 : x, exists);
    }
    GK_COPY_COMMIT();
}

/* acc[i][j] += row 2 i (+ 1) of a stage times the thread's column of gate j, over its part of n chunks from chunk `from` of the weights on. */
GK_FN void gk_step_multiply(const gk_forward* s, GK_LOCAL_PTR const gk_raw16* stage, int from, int n, const int gates, float acc[8][4])
{
    GK_LOCAL_PTR const gk_raw16* w = s->w + s->column * s->stride + from;
    GK_LOCAL_PTR const gk_raw16* x = stage + (gk_lid() & 1) * GK_STATE_PITCH;
    for (int c = s->part; c < n; c += s->parts) {
        float b[4][4], a[4];
        GK_UNROLL for (int j = 0; j < 4; j++)
            if (j < gates) gk_floats_of(w[j * s->threads * s->stride + c], b[j]);
        GK_UNROLL for (int i = 0; i < 8; i++) {
            gk_floats_of(x[2 * i * GK_STATE_PITCH + c], a);
            GK_UNROLL for (int u = 0; u < 4; u++)
                GK_UNROLL for (int j = 0; j < 4; j++)
                    if (j < gates) acc[i][j] += a[u] * b[j][u];
        }
    }
}

/* u[j] = the product of the thread's element of a tile with gate j; x: the block's rows of the state before. */
GK_FN void gk_step_product(const gk_forward* s, GK_GLOBAL const float* x, int tile, const gk_step_place* p, const int gates, gk_f u[4])
{
    float acc[8][4];
    GK_BARRIER();
    GK_UNROLL for (int f = 0; f < GK_STAGES - 1; f++)
        if (tile == 0) gk_step_fetch(s, x, f);
    GK_UNROLL for (int i = 0; i < 8; i++)
        GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
    GK_ROLLED for (int k = 0; k < s->stages; k++) {
        int f = tile * s->stages + k, from = k * GK_STATE_TERMS, left = s->chunks - from;
        GK_STAGE_WAIT();
        GK_BARRIER();
        gk_step_fetch(s, x, f + GK_STAGES - 1);
        gk_step_multiply(s, s->ring + f % GK_STAGES * (GK_STEP_ROWS * GK_STATE_PITCH), from, left < GK_STATE_TERMS ? left : GK_STATE_TERMS, gates, acc);
    }
    GK_LOCAL_PTR float* to = s->sums + s->part * s->pitch + (gk_lid() & 1) * s->threads + s->column;
    GK_UNROLL for (int i = 0; i < 8; i++)
        GK_UNROLL for (int j = 0; j < 4; j++)
            if (j < gates) to[(j * GK_STEP_ROWS + 2 * i) * s->threads] = acc[i][j];
    GK_BARRIER();
    GK_UNROLL for (int j = 0; j < 4; j++) u[j] = GK_R(0.0);
    GK_ROLLED for (int g = 0; g < s->parts; g += 8) {
        GK_LOCAL_PTR const float* sum = s->sums + g * s->pitch + p->row * s->threads + p->column;
        GK_UNROLL for (int i = 0; i < 8; i++)
            GK_UNROLL for (int j = 0; j < 4; j++)
                if (j < gates) u[j] += sum[i * s->pitch + j * GK_STEP_ROWS * s->threads];
    }
}

/* The state before step `at`: of all steps, or of two that take turns. */
GK_FN GK_GLOBAL gk_t* gk_state_at(GK_GLOBAL gk_t* first, int at, int kept, gk_i64 n) { return first + (kept ? at : at & 1) * n; }

// Units: FLOATS
/* `h` has the states of all steps behind each other if `kept` has 1, else two that take turns, and `c` if it has 2; the first is there. */

GK_KERNEL(lstm_persistent)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(int, lengths), GK_OUT(gk_t, h), GK_OUT(gk_t, c), GK_OUT(gk_t, y),
                           GK_OUT(gk_t, gates), GK_OUT(gk_t, h_last), GK_OUT(gk_t, c_last), GK_OUT(float, exchange), GK_OUT(gk_u32, turns), gk_i64 n,
                           gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, gk_i64 step_a, gk_i64 step_y, int steps, int columns, int rows, int reverse,
                           int kept)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_t, h); GK_BIND_OUT(gk_t, c);
    GK_BIND_OUT(gk_t, y); GK_BIND_OUT(gk_t, gates); GK_BIND_OUT(gk_t, h_last); GK_BIND_OUT(gk_t, c_last); GK_BIND_OUT(float, exchange);
    GK_BIND_OUT(gk_u32, turns);
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_RING_CHUNKS);
    gk_forward s = gk_forward_begin(local, gk_share_of(n, hidden, columns, rows), (int)hidden, 4);
    gk_forward_keep(&s, w, (int)hidden, 4);
    gk_forward_first(&s, h, exchange, turns, hidden);
    GK_ROLLED for (int at = 0; at < steps; at++) {
        int t = reverse ? steps - 1 - at : at, last = at + 1 == steps;
        GK_GLOBAL gk_t *h_now = gk_state_at(h, at, kept & 1, n), *c_now = gk_state_at(c, at, kept & 2, n);
        GK_GLOBAL const float* x = exchange + gk_exchange_at(&s, at, n / hidden);
        gk_lstm_to to = {gk_state_at(h, at + 1, kept & 1, n), gk_state_at(c, at + 1, kept & 2, n), y + t * step_y, gates ? gates + at * 4 * n : gates,
                         last ? h_last : 0, last ? c_last : 0, hidden, row_y};
        gk_step_place p;
        gk_lstm_out o;
        GK_ROLLED for (int tile = 0; tile < s.of.tiles; tile++) {
            p = gk_step_at(s.of, tile, hidden);
            /* On its way while the block multiplies. */
            gk_lstm_in in = gk_lstm_read(p.e, p.b, p.j, a + t * step_a, bias, c_now, lengths, hidden, row_a, t);
            gk_f u[4];
            gk_step_wait(turns, at + 1, tile);
            gk_step_product(&s, x, tile, &p, 4, u);
            o = gk_lstm_make(p.e, u, in, h_now);
            if (p.exists) exchange[gk_exchange_at(&s, at + 1, n / hidden) + gk_exchange_place(&s, &p)] = gk_as_stored(o.h);
            if (p.exists && tile + 1 < s.of.tiles) gk_lstm_write(p.e, p.b, p.j, o, to);
        }
        gk_step_end(turns);
        if (p.exists) gk_lstm_write(p.e, p.b, p.j, o, to);
    }
}

GK_KERNEL(gru_persistent)(GK_IN(gk_t, w), GK_IN(gk_f, a), GK_IN(gk_t, bias), GK_IN(int, lengths), GK_OUT(gk_t, h), GK_OUT(gk_t, y),
                          GK_OUT(gk_t, save_r), GK_OUT(gk_t, save_z), GK_OUT(gk_t, save_n), GK_OUT(gk_t, save_u), GK_OUT(gk_t, h_last),
                          GK_OUT(float, exchange), GK_OUT(gk_u32, turns), gk_i64 n, gk_i64 hidden, gk_i64 row_a, gk_i64 row_y, gk_i64 step_a,
                          gk_i64 step_y, int steps, int columns, int rows, int reverse, int kept)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_f, a); GK_BIND_IN(gk_t, bias); GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_t, h); GK_BIND_OUT(gk_t, y);
    GK_BIND_OUT(gk_t, save_r); GK_BIND_OUT(gk_t, save_z); GK_BIND_OUT(gk_t, save_n); GK_BIND_OUT(gk_t, save_u); GK_BIND_OUT(gk_t, h_last);
    GK_BIND_OUT(float, exchange); GK_BIND_OUT(gk_u32, turns);
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_RING_CHUNKS);
    gk_forward s = gk_forward_begin(local, gk_share_of(n, hidden, columns, rows), (int)hidden, 3);
    gk_forward_keep(&s, w, (int)hidden, 3);
    gk_forward_first(&s, h, exchange, turns, hidden);
    GK_ROLLED for (int at = 0; at < steps; at++) {
        int t = reverse ? steps - 1 - at : at, last = at + 1 == steps;
        GK_GLOBAL gk_t* h_now = gk_state_at(h, at, kept & 1, n);
        gk_i64 saved = at * n;
        GK_GLOBAL const float* x = exchange + gk_exchange_at(&s, at, n / hidden);
        gk_gru_to to = {gk_state_at(h, at + 1, kept & 1, n), y + t * step_y, save_r ? save_r + saved : save_r, save_z ? save_z + saved : save_z,
                        save_n ? save_n + saved : save_n, save_u ? save_u + saved : save_u, last ? h_last : 0, row_y};
        gk_step_place p;
        gk_gru_out o;
        GK_ROLLED for (int tile = 0; tile < s.of.tiles; tile++) {
            p = gk_step_at(s.of, tile, hidden);
            gk_gru_in in = gk_gru_read(p.e, p.b, p.j, a + t * step_a, bias, h_now, lengths, hidden, row_a, t);
            gk_f u[4];
            gk_step_wait(turns, at + 1, tile);
            gk_step_product(&s, x, tile, &p, 3, u);
            o = gk_gru_make(u, in, 0);
            if (p.exists) exchange[gk_exchange_at(&s, at + 1, n / hidden) + gk_exchange_place(&s, &p)] = gk_as_stored(o.h);
            if (p.exists && tile + 1 < s.of.tiles) gk_gru_write(p.e, p.b, p.j, o, to);
        }
        gk_step_end(turns);
        if (p.exists) gk_gru_write(p.e, p.b, p.j, o, to);
    }
}

/* ---- backward, from the last step processed on ---------------------------------------------------------------------------------- */

typedef struct {
    gk_share of;
    GK_LOCAL_PTR float* d; /* gradients of the gates of a tile: 16 rows of `terms` */
    GK_LOCAL_PTR float* w; /* a row of `pitch` columns per gate and column of the block */
    int terms, pitch;
    gk_i64 from, to;       /* what the block adds up, and its place in what others do, in one of the two parts of the exchange; */
    gk_i64 next, part;     /* how far apart the latter are, and these parts */
} gk_backward;

GK_FN gk_backward gk_backward_begin(GK_LOCAL_PTR gk_raw16* local, gk_share of, int hidden, int rows, const int gates)
{
    gk_backward s;
    gk_i64 blocks = gk_nblocks(0), each = (gk_i64)rows * of.columns;
    s.of = of;
    s.terms = gates * of.columns;
    s.pitch = (hidden + 3) / 4 * 4;
    s.d = (GK_LOCAL_PTR float*)local;
    s.w = s.d + GK_STEP_ROWS * s.terms;
    s.next = blocks * each;
    s.part = gk_nblocks(1) * blocks * s.next;
    s.from = (gk_bid(1) * blocks + gk_bid(0)) * s.next;
    s.to = gk_bid(1) * blocks * s.next + gk_bid(0) * each;
    return s;
}

/* Keeps the block's weights as floats, zeros beyond rows and columns. */
GK_FN void gk_backward_keep(const gk_backward* s, GK_GLOBAL const gk_t* w, int hidden)
{
    for (int i = gk_lid(); i < s->terms * s->pitch; i += GK_BLOCK) {
        int k = i / s->pitch, c = i % s->pitch, gate = k / s->of.columns, row = s->of.first + k % s->of.columns;
        gk_f v = GK_R(0.0);
        if (row < hidden && c < hidden) v = gk_load(w, ((gk_i64)gate * hidden + row) * hidden + c);
        s->w[i] = v;
    }
}

/* What arrives at the thread's element of the state behind step `at` through the products of the step behind. */
GK_FN gk_f gk_step_arriving(const gk_backward* s, GK_GLOBAL const float* exchange, int at, int tile, const gk_step_place* p)
{
    GK_GLOBAL const float* from = exchange + ((at + 1) & 1) * s->part + s->from + (tile * GK_STEP_ROWS + p->row) * s->of.columns + p->column;
    int blocks = gk_nblocks(0), each = (int)(s->next / blocks);
    gk_f sum = GK_R(0.0), v[32];
    GK_ROLLED for (int g = 0; g < blocks; g += 32) {
        GK_UNROLL for (int i = 0; i < 32; i++) v[i] = g + i < blocks ? from[(gk_i64)(g + i) * each] : GK_R(0.0);
        GK_UNROLL for (int i = 0; i < 32; i++) sum += v[i];
    }
    return sum;
}

/* Gradient number q of the gates of the thread's element, zero where there is none. */
GK_FN void gk_step_keep(const gk_backward* s, const gk_step_place* p, int q, gk_f d)
{
    int row = gk_lid() / s->of.columns;
    if (row < GK_STEP_ROWS) s->d[row * s->terms + q * s->of.columns + gk_lid() % s->of.columns] = p->exists ? gk_as_stored(d) : GK_R(0.0);
}

/* Multiplies the gradients of a tile by the block's weights. A warp makes 8 rows x 128 columns at a time, a thread 8 x 4. Between barriers. */
GK_FN void gk_step_spread(const gk_backward* s, GK_GLOBAL float* exchange, int at, int tile, int hidden)
{
    GK_GLOBAL float* to = exchange + (at & 1) * s->part + s->to;
    for (int task = gk_lid() / 32; task < (hidden + 127) / 128 * 2; task += GK_BLOCK / 32) {
        int column = task / 2 * 128 + gk_lid() % 32 * 4, row = task % 2 * 8;
        float acc[8][4], a[4], b[4][4];
        if (column >= hidden) continue;
        GK_UNROLL for (int i = 0; i < 8; i++)
            GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] = 0.0f;
        for (int k = 0; k < s->terms; k += 4) {
            GK_UNROLL for (int u = 0; u < 4; u++) gk_floats_of(*(GK_LOCAL_PTR const gk_raw16*)(s->w + (k + u) * s->pitch + column), b[u]);
            GK_UNROLL for (int i = 0; i < 8; i++) {
                gk_floats_of(*(GK_LOCAL_PTR const gk_raw16*)(s->d + (row + i) * s->terms + k), a);
                GK_UNROLL for (int u = 0; u < 4; u++)
                    GK_UNROLL for (int j = 0; j < 4; j++) acc[i][j] += a[u] * b[u][j];
            }
        }
        GK_UNROLL for (int i = 0; i < 8; i++) {
            gk_i64 place = column / s->of.columns * s->next + (tile * GK_STEP_ROWS + row + i) * s->of.columns + column % s->of.columns;
            gk_store16(to + place, gk_make16(gk_as_u32(acc[i][0]), gk_as_u32(acc[i][1]), gk_as_u32(acc[i][2]), gk_as_u32(acc[i][3])));
        }
    }
}

GK_KERNEL(lstm_persistent_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, gates), GK_IN(gk_t, c), GK_IN(gk_t, dy), GK_IN(gk_t, dh_last), GK_IN(gk_t, dc_last),
                               GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_f, dc), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), GK_OUT(float, exchange),
                               GK_OUT(gk_u32, turns), gk_i64 n, gk_i64 hidden, gk_i64 row_y, gk_i64 row_x, gk_i64 step_y, gk_i64 step_x, int steps,
                               int columns, int rows, int reverse, int keep)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, gates); GK_BIND_IN(gk_t, c); GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, dh_last); GK_BIND_IN(gk_t, dc_last);
    GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_f, dc); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_BIND_OUT(float, exchange); GK_BIND_OUT(gk_u32, turns);
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_RING_CHUNKS);
    gk_backward s = gk_backward_begin(local, gk_share_of(n, hidden, columns, rows), (int)hidden, rows, 4);
    gk_backward_keep(&s, w, (int)hidden);
    GK_ROLLED for (int at = steps - 1; at >= 0; at--) {
        int t = reverse ? steps - 1 - at : at, first = at + 1 == steps;
        gk_lstm_grads_to to = {dh, dc, dz + at * 4 * n, dx ? dx + t * step_x : dx, hidden, row_x, keep};
        GK_ROLLED for (int tile = 0; tile < s.of.tiles; tile++) {
            gk_step_place p = gk_step_at(s.of, tile, hidden);
            /* On its way while the block waits. */
            gk_lstm_bwd_in in = gk_lstm_bwd_read(p.e, p.b, p.j, gates + at * 4 * n, c + at * n, c + (at + 1) * n, dy ? dy + t * step_y : dy, lengths,
                                                 hidden, row_y, t);
            gk_f up = keep && !first ? dh[p.e] : GK_R(0.0), carried = gk_arriving(dc, dc_last, p.e, first);
            gk_step_wait(turns, steps - 1 - at, tile);
            GK_BARRIER();
            up = first ? gk_or_zero(dh_last, p.e) : up + gk_step_arriving(&s, exchange, at, tile, &p);
            gk_lstm_grads o = gk_lstm_make_grads(up, carried, in);
            GK_UNROLL for (int q = 0; q < 4; q++) gk_step_keep(&s, &p, q, o.d[q]);
            GK_BARRIER();
            if (p.exists) gk_lstm_write_grads(p.e, p.b, p.j, o, to);
            gk_step_spread(&s, exchange, at, tile, (int)hidden);
        }
        gk_step_end(turns);
    }
}

GK_KERNEL(gru_persistent_bwd)(GK_IN(gk_t, w), GK_IN(gk_t, r), GK_IN(gk_t, z), GK_IN(gk_t, m), GK_IN(gk_t, un), GK_IN(gk_t, h), GK_IN(gk_t, dy),
                              GK_IN(gk_t, dh_last), GK_IN(int, lengths), GK_OUT(gk_f, dh), GK_OUT(gk_t, dz), GK_OUT(gk_t, dx), GK_OUT(float, exchange),
                              GK_OUT(gk_u32, turns), gk_i64 n, gk_i64 hidden, gk_i64 row_y, gk_i64 row_x, gk_i64 step_y, gk_i64 step_x, int steps,
                              int columns, int rows, int reverse)
{
    GK_BIND_IN(gk_t, w); GK_BIND_IN(gk_t, r); GK_BIND_IN(gk_t, z); GK_BIND_IN(gk_t, m); GK_BIND_IN(gk_t, un); GK_BIND_IN(gk_t, h);
    GK_BIND_IN(gk_t, dy); GK_BIND_IN(gk_t, dh_last); GK_BIND_IN(int, lengths); GK_BIND_OUT(gk_f, dh); GK_BIND_OUT(gk_t, dz); GK_BIND_OUT(gk_t, dx);
    GK_BIND_OUT(float, exchange); GK_BIND_OUT(gk_u32, turns);
    GK_LOCAL_DYNAMIC(gk_raw16, local, GK_RING_CHUNKS);
    gk_backward s = gk_backward_begin(local, gk_share_of(n, hidden, columns, rows), (int)hidden, rows, 3);
    gk_backward_keep(&s, w, (int)hidden);
    GK_ROLLED for (int at = steps - 1; at >= 0; at--) {
        int t = reverse ? steps - 1 - at : at, first = at + 1 == steps;
        gk_i64 now = at * n;
        gk_gru_grads_to to = {dh, dz + at * 3 * n, dx ? dx + t * step_x : dx, hidden, row_x, 0};
        GK_ROLLED for (int tile = 0; tile < s.of.tiles; tile++) {
            gk_step_place p = gk_step_at(s.of, tile, hidden);
            gk_gru_bwd_in in = gk_gru_bwd_read(p.e, p.b, p.j, r + now, z + now, m + now, un + now, h + now, dy ? dy + t * step_y : dy, lengths, row_y, t);
            gk_f up = first ? GK_R(0.0) : dh[p.e];
            gk_step_wait(turns, steps - 1 - at, tile);
            GK_BARRIER();
            up = first ? gk_or_zero(dh_last, p.e) : up + gk_step_arriving(&s, exchange, at, tile, &p);
            gk_gru_grads o = gk_gru_make_grads(up, in);
            GK_UNROLL for (int q = 0; q < 3; q++) gk_step_keep(&s, &p, q, q == 2 ? o.d[3] : o.d[q]);
            GK_BARRIER();
            if (p.exists) gk_gru_write_grads(p.e, p.b, p.j, o, to);
            gk_step_spread(&s, exchange, at, tile, (int)hidden);
        }
        gk_step_end(turns);
    }
}
#endif
#endif
