// Natural compression of a sum v, in three steps, without |v|. Let m = |v| and r the noise.
//
// 1. With k the position of the leading one of m, `rounding` = r & (2^k - 1); for v < 0 its complement. For v < 0 the
//    leading zero of v stands for the leading one of m: they are at the same place, or m is a power of two and the zero
//    one place lower. But then m + (r & (2^(k-1) - 1)) has its leading one at k too, as it has with 2^k - 1.
// 2. v + rounding. For v >= 0 that is w = m + (r & (2^k - 1)); for v < 0 it is -m - (r & ...) - 1 = -w - 1, so ~w.
// 3. The leading one of w, or leading zero of ~w, at position k: level k + 1. Or for a maximum the byte itself.

// Bit k and those above it.
#define FROM(k) ~((32w1 << k) - 1)
#define LEADING_ONE(k) 32w1 << k &&& FROM(k)
#define LEADING_ZERO(k) FROM(k) ^ 32w1 << k &&& FROM(k)
#define EACH_POSITION(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15) \
    M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23) M(24) M(25) M(26) M(27) M(28) M(29) M(30)
#define ROUND_UP(k) (LEADING_ONE(k), _) : up((32w1 << k) - 1);
#define ROUND_DOWN(k) (LEADING_ZERO(k), _) : down((32w1 << k) - 1);
#define CODE_UP(k) (LEADING_ONE(k), OP_SUM) : set(k + 1);
#define CODE_SCALE(v) (v, OP_MAX) : set(v);
#define CODE_DOWN(k) (LEADING_ZERO(k), OP_SUM) : set(0x80 | k + 1);

// Step 1. Nothing is added to a maximum.
control Rounding(in bit<32> sum, in bit<8> op, in bit<32> noise, out bit<32> rounding) {
    action up(bit<32> mask) {
        rounding = noise & mask;
    }
    action down(bit<32> mask) {
        rounding = ~(noise & mask);
    }

    @hidden
    table leading {
        key = {
            sum : ternary;
            op : ternary;
        }
        actions = { up; down; }
        const default_action = down(0);  // -1, which has no zero
        const entries = {
            (_, OP_MAX) : up(0);
            (0, _) : up(0);
            EACH_POSITION(ROUND_UP)
            EACH_POSITION(ROUND_DOWN)
        }
    }

    apply {
        leading.apply();
    }
}
