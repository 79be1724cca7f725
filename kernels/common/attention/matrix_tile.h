/* What the kernels of attention on matrix cores share: the functions of their units, and tiles of rows of operands. */
#define gk_head32_width 32
#define gk_head64_width 64
#define gk_head128_width 128
#define gk_head64_rules_width 64
#define gk_head128_rules_width 128
#define gk_head32_all 0
#define gk_head64_all 0
#define gk_head128_all 0
#define gk_head64_rules_all 1
#define gk_head128_rules_all 1
/* Whether there may be a bias, a mask, a soft cap, dropout or a factor that is not positive. */
#define GK_ALL_RULES GK_CAT(GK_OP, _all)
#define GK_HEAD_WIDTH GK_CAT(GK_OP, _width)
#include "common/prelude/matrix.h"
#include "rule.h"

/* Of a row of a tile: chunks, and groups of 8 columns of sums. */
#define GK_HEAD_CHUNKS (GK_HEAD_WIDTH / GK_PER_CHUNK)
#define GK_HEAD_SUMS (GK_HEAD_WIDTH / 8)

#define GK_LN2 0.693147181f
#define GK_LOG2E 1.44269504f
/* 2^x of what is at most 0: denormal powers may come out as 0. */
#ifdef GK_QUICK_EXP2
#define gk_power(x) gk_quick_exp2(x)
#else
#define gk_power(x) gk_exp2(x)
#endif
/* Queues the copy of `count` rows of which `rows` exist, and of whose chunks `width` numbers do. */
GK_FN void gk_fetch(GK_GLOBAL const gk_t* p, gk_i64 step, const int count, int rows, int width, GK_LOCAL_PTR gk_raw16* tile)
{
    GK_UNROLL for (int i = 0; i < count * GK_HEAD_CHUNKS / GK_BLOCK; i++) {
        int n = gk_lid() + i * GK_BLOCK, r = n / GK_HEAD_CHUNKS, c = n % GK_HEAD_CHUNKS, exists = r < rows && c * GK_PER_CHUNK < width;
        gk_copy16(tile + gk_chunk_at(r, c, count), exists ? p + r * step + c * GK_PER_CHUNK : p, exists);
    }
}
