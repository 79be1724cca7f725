/* Bytes that go with the elements of a 16-byte item, such as a mask: one access for all GK_W of them. */
#ifndef GK_BYTES_H
#define GK_BYTES_H

#if GK_W == 2
typedef gk_u16 gk_bytes;
#elif GK_W == 4
typedef gk_u32 gk_bytes;
#elif GK_W == 8
typedef gk_u64 gk_bytes;
#endif

#if GK_W <= 8
/* The bytes at an index divisible by GK_W of an aligned base. */
#define gk_bytes_at(p, i) (*(GK_GLOBAL const gk_bytes*)((p) + (i)))
/* Whether byte k of them is not 0. */
#define gk_byte_set(b, k) (((b) >> (8 * (k)) & 0xffu) != 0)
#endif

#endif
