// The rounding noise of a group of lanes: of group g in chunk c, r = CRC-32(seed, slot, generation, 8c + g).

control Noise(in inagg_t h, in bit<32> seed, in bit<8> place, out bit<32> noise)(bit<3> group) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) crc;

    action draw() {
        noise = crc.get({ seed, h.slot, h.generation, 11w0, place[1:0], group });
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
