// The rounding noise of a group of lanes.

control Noise(in inagg_t h, in bit<32> seed, out bit<32> noise)(bit<16> group) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;

    action draw() {
        noise = crc.get({ seed, h.slot, h.generation, group });
    }
    @hidden
    table draws {  // one for each word: a table gets 32 bits of hash at most
        actions = { draw; }
        const default_action = draw();
    }

    apply {
        draws.apply();
    }
}
