/* Positions in strided tensors. */

/* Splits item number `item` of a shape into its coordinates, innermost first, and runs `step` for each axis `d` with coordinate `r`. */
#define GK_COORDS(type, item, rank, shape, step) \
    do { \
        type rest = (type)(item); \
        for (int d = (rank) - 1; d > 0; d--) { \
            type size = (type)(shape).v[d], q = rest / size, r = rest - q * size; \
            rest = q; \
            step \
        } \
        { const int d = 0; type r = rest; step } \
    } while (0)

/* 64-bit divisions are slow: use 32 bits where the count `n` of items allows. */
#define GK_ND(item, n, rank, shape, step) \
    do { \
        if ((n) <= 0x7fffffffll) GK_COORDS(gk_u32, item, rank, shape, step); \
        else GK_COORDS(gk_u64, item, rank, shape, step); \
    } while (0)
