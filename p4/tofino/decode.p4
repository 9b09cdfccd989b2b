// From code to integer.

// Level k is 2^(k-1). Levels go up to 31 - c, with c = ceil(log2 n) the mode of a sum; what is higher names none and
// counts as 0, like the sign without a level: the default.
#define LEVEL(c, k) (k, c) : set(32w1 << k - 1); (0x80 | k, c) : set(-(32w1 << k - 1));
#define LEVELS_26(c) LEVEL(c, 1) LEVEL(c, 2) LEVEL(c, 3) LEVEL(c, 4) LEVEL(c, 5) LEVEL(c, 6) LEVEL(c, 7) LEVEL(c, 8) \
    LEVEL(c, 9) LEVEL(c, 10) LEVEL(c, 11) LEVEL(c, 12) LEVEL(c, 13) LEVEL(c, 14) LEVEL(c, 15) LEVEL(c, 16) \
    LEVEL(c, 17) LEVEL(c, 18) LEVEL(c, 19) LEVEL(c, 20) LEVEL(c, 21) LEVEL(c, 22) LEVEL(c, 23) LEVEL(c, 24) \
    LEVEL(c, 25) LEVEL(c, 26)

// A scale byte is its own integer. As entries, and not as a copy: that would tie the container of the byte to one of 32 bits.
#define BYTES_8(M, v) M(v) M(v + 1) M(v + 2) M(v + 3) M(v + 4) M(v + 5) M(v + 6) M(v + 7)
#define BYTES_64(M, v) BYTES_8(M, v) BYTES_8(M, v + 8) BYTES_8(M, v + 16) BYTES_8(M, v + 24) BYTES_8(M, v + 32) \
    BYTES_8(M, v + 40) BYTES_8(M, v + 48) BYTES_8(M, v + 56)
#define EACH_BYTE(M) BYTES_64(M, 0) BYTES_64(M, 64) BYTES_64(M, 128) BYTES_64(M, 192)
#define SCALE(v) (v, MODE_MAX) : set(v);

control Decode(in bit<8> code, in bit<8> mode, out bit<32> value) {
    action set(bit<32> integer) {
        value = integer;
    }
    // Keys of a lane in one memory, not four: memories that are read cost power, of which the compiler grants 40 W. A row
    // of 1024 holds two keys, and two at most have one row: those that differ in mode's bit 2 alone, or in what it flips.
    @hidden
    @ways(1)
    @pack(2)
    table integer {
        key = {
            code : exact;
            mode : exact;
        }
        actions = { set; }
        const default_action = set(0);
        const entries = {
            LEVELS_26(0) LEVEL(0, 27) LEVEL(0, 28) LEVEL(0, 29) LEVEL(0, 30) LEVEL(0, 31)
            LEVELS_26(1) LEVEL(1, 27) LEVEL(1, 28) LEVEL(1, 29) LEVEL(1, 30)
            LEVELS_26(2) LEVEL(2, 27) LEVEL(2, 28) LEVEL(2, 29)
            LEVELS_26(3) LEVEL(3, 27) LEVEL(3, 28)
            LEVELS_26(4) LEVEL(4, 27)
            LEVELS_26(5)
            EACH_BYTE(SCALE)
        }
    }

    apply {
        integer.apply();
    }
}
