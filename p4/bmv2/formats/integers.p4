// Codes that are integers in two's complement. One whose magnitude is beyond `levels` counts as 0.

// `valid`: all ones; 0 if this is not the code of a contribution to a sum.
bit<32> linear_wrong(in bit<32> integer, in bit<32> levels) {  // 1 or 0
    return (bit<32>)((bit<33>)(levels << 1) - (bit<33>)(integer + levels) >> 32);
}
bit<32> linear_integer(in bit<32> integer, in bit<32> levels, in bit<32> valid) {
    return integer & linear_wrong(integer, levels) - 1 & valid;
}
