// Repetition, for which P4 has no word: a payload has LANES lanes in CHUNKS chunks of 8.

#define CHUNKS (LANES / 8)

#define LANES_8(M, c) M(c, 0) M(c, 1) M(c, 2) M(c, 3) M(c, 4) M(c, 5) M(c, 6) M(c, 7)

#define CHUNKS_1(M) M(0)
#define CHUNKS_4(M) M(0) M(1) M(2) M(3)
#define CHUNKS_8(M) CHUNKS_4(M) M(4) M(5) M(6) M(7)
#define CHUNKS_16(M) CHUNKS_8(M) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15)
#define CHUNKS_32(M) CHUNKS_16(M) M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23) \
    M(24) M(25) M(26) M(27) M(28) M(29) M(30) M(31)

#if LANES == 8
#define EACH_CHUNK(M) CHUNKS_1(M)
#elif LANES == 32
#define EACH_CHUNK(M) CHUNKS_4(M)
#elif LANES == 64
#define EACH_CHUNK(M) CHUNKS_8(M)
#elif LANES == 128
#define EACH_CHUNK(M) CHUNKS_16(M)
#elif LANES == 256
#define EACH_CHUNK(M) CHUNKS_32(M)
#else
#error "LANES is 8, 32, 64, 128 or 256"
#endif
