// What the header alone shows: reasons 2 to 12, in their order, as one ternary table. The first entry that fits counts.
//
// A ternary key says what a field is, not what it is not; so "is not 1" is one entry for each bit that may differ.

#ifndef INAGG_CHECK
#define INAGG_CHECK

// The key is: magic, version, kind, op, format, lanes, job, owner, token, slot, generation.
#define SET(b) b &&& b    // these bits are ones
#define CLEAR(b) 0 &&& b  // these bits are zeros
#define MAGIC_IS(v) (v, _, _, _, _, _, _, _, _, _, _) : refuse(REASON_BAD_MAGIC);
#define VERSION_IS(v) (_, v, _, _, _, _, _, _, _, _, _) : refuse(REASON_BAD_VERSION);
#define KIND_IS(v) (_, _, v, _, _, _, _, _, _, _, _) : refuse(REASON_BAD_KIND);
#define OP_IS(v) (_, _, _, v, _, _, _, _, _, _, _) : refuse(REASON_BAD_OP);
#define FORMAT_IS(kind, op, v) (_, _, kind, op, v, _, _, _, _, _, _) : refuse(REASON_BAD_FORMAT);
#define LANES_ARE(kind, v) (_, _, kind, _, _, v, _, _, _, _, _) : refuse(REASON_BAD_LANES);
#define OWNER_IS(kind, op, v) (_, _, kind, op, _, _, _, v, _, _, _) : refuse(REASON_BAD_OWNER);
#define JOB_IS(v) (_, _, _, _, _, _, v, _, _, _, _) : refuse(REASON_BAD_JOB);
#define TOKEN_IS(v) (_, _, _, _, _, _, _, _, v, _, _) : refuse(REASON_BAD_TOKEN);
#define SLOT_IS(v) (_, _, _, _, _, _, _, _, _, v, _) : refuse(REASON_BAD_SLOT);
#define GENERATION_IS(v) (_, _, _, _, _, _, _, _, _, _, v) : refuse(REASON_BAD_GENERATION);
#define BITS_7_TO_1(M) M(SET(0x80)) M(SET(0x40)) M(SET(0x20)) M(SET(0x10)) M(SET(0x08)) M(SET(0x04)) M(SET(0x02))
#define LANES_NOT_0(kind) LANES_ARE(kind, SET(0x8000)) LANES_ARE(kind, SET(0x4000)) LANES_ARE(kind, SET(0x2000)) \
    LANES_ARE(kind, SET(0x1000)) LANES_ARE(kind, SET(0x0800)) LANES_ARE(kind, SET(0x0400)) LANES_ARE(kind, SET(0x0200)) \
    LANES_ARE(kind, SET(0x0100)) LANES_ARE(kind, SET(0x0080)) LANES_ARE(kind, SET(0x0040)) LANES_ARE(kind, SET(0x0020)) \
    LANES_ARE(kind, SET(0x0010)) LANES_ARE(kind, SET(0x0008))
#define BITS_14_TO_0(M) M(0x4000) M(0x2000) M(0x1000) M(0x0800) M(0x0400) M(0x0200) M(0x0100) \
    M(0x0080) M(0x0040) M(0x0020) M(0x0010) M(0x0008) M(0x0004) M(0x0002) M(0x0001)
#define REASON_IS(v) OWNER_IS(KIND_NOTICE, _, v)
#define OWNER_OF_SUM(b) OWNER_IS(_, OP_SUM, SET(0x8000 | b))
#define OWNER_OF_MAX(b) OWNER_IS(KIND_CONTRIBUTION, OP_MAX, SET(b)) OWNER_IS(KIND_RESULT, OP_MAX, SET(b))

control Check(in inagg_t h, inout bit<8> reason) {
    action refuse(bit<8> why) {
        reason = why;
    }

    @hidden
    table check {
        key = {
            h.magic : ternary;
            h.version : ternary;
            h.kind : ternary;
            h.op : ternary;
            h.format : ternary;
            h.lanes : ternary;
            h.job : ternary;
            h.owner : ternary;
            h.token : ternary;
            h.slot : ternary;
            h.generation : ternary;
        }
        actions = { refuse; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            // not 0x494E
            MAGIC_IS(SET(0x8000)) MAGIC_IS(CLEAR(0x4000)) MAGIC_IS(SET(0x2000)) MAGIC_IS(SET(0x1000))
            MAGIC_IS(CLEAR(0x0800)) MAGIC_IS(SET(0x0400)) MAGIC_IS(SET(0x0200)) MAGIC_IS(CLEAR(0x0100))
            MAGIC_IS(SET(0x0080)) MAGIC_IS(CLEAR(0x0040)) MAGIC_IS(SET(0x0020)) MAGIC_IS(SET(0x0010))
            MAGIC_IS(CLEAR(0x0008)) MAGIC_IS(CLEAR(0x0004)) MAGIC_IS(CLEAR(0x0002)) MAGIC_IS(SET(0x0001))
            // not 1
            BITS_7_TO_1(VERSION_IS) VERSION_IS(CLEAR(0x01))
            // not 1, 2, 3 or 4
            KIND_IS(SET(0x80)) KIND_IS(SET(0x40)) KIND_IS(SET(0x20)) KIND_IS(SET(0x10)) KIND_IS(SET(0x08))
            KIND_IS(CLEAR(0x07)) KIND_IS(SET(0x05)) KIND_IS(SET(0x06))
            // not 1 or 2
            OP_IS(SET(0x80)) OP_IS(SET(0x40)) OP_IS(SET(0x20)) OP_IS(SET(0x10)) OP_IS(SET(0x08)) OP_IS(SET(0x04))
            OP_IS(CLEAR(0x03)) OP_IS(SET(0x03))
            // no format: 0, 10 and more
            FORMAT_IS(_, _, 0)
            FORMAT_IS(_, _, SET(0x80)) FORMAT_IS(_, _, SET(0x40)) FORMAT_IS(_, _, SET(0x20)) FORMAT_IS(_, _, SET(0x10))
            FORMAT_IS(_, _, SET(0x0C)) FORMAT_IS(_, _, SET(0x0A))
            // MAX carries scale8 (9) alone; SUM never does
            FORMAT_IS(_, OP_MAX, CLEAR(0x08)) FORMAT_IS(_, OP_MAX, FORMAT_INT16)
            FORMAT_IS(_, OP_SUM, FORMAT_SCALE8)
            // contributions to a sum: 1 to 5, and int16 from a switch; results: all but tern
            FORMAT_IS(KIND_CONTRIBUTION, OP_SUM, FORMAT_INT4) FORMAT_IS(KIND_CONTRIBUTION, OP_SUM, FORMAT_INT8)
            FORMAT_IS(KIND_RESULT, OP_SUM, FORMAT_TERN)
            // acknowledgements: to a sum, as its results
            FORMAT_IS(KIND_ACK, OP_SUM, FORMAT_TERN) FORMAT_IS(KIND_ACK, OP_MAX, _)
            // multiples of 8, which 0 is in a notice or an acknowledgement alone
            LANES_ARE(_, SET(0x0001)) LANES_ARE(_, SET(0x0002)) LANES_ARE(_, SET(0x0004))
            LANES_ARE(KIND_CONTRIBUTION, 0) LANES_ARE(KIND_RESULT, 0)
            LANES_NOT_0(KIND_NOTICE) LANES_NOT_0(KIND_ACK)
            // a reason in a notice: one of 1 to 14 or 32 to 43
            REASON_IS(SET(0x8000)) REASON_IS(SET(0x4000)) REASON_IS(SET(0x2000)) REASON_IS(SET(0x1000))
            REASON_IS(SET(0x0800)) REASON_IS(SET(0x0400)) REASON_IS(SET(0x0200)) REASON_IS(SET(0x0100))
            REASON_IS(SET(0x0080)) REASON_IS(SET(0x0040)) REASON_IS(0) REASON_IS(15)
            REASON_IS(SET(0x0010)) REASON_IS(SET(0x002C))
            // else an owner: 0 to 32768 with a sum, 0 with a maximum, not 0 in an acknowledgement
            BITS_14_TO_0(OWNER_OF_SUM) OWNER_OF_MAX(0x8000) BITS_14_TO_0(OWNER_OF_MAX) OWNER_IS(KIND_ACK, _, 0)
            // the rest
            JOB_IS(0)
            TOKEN_IS(0)
            SLOT_IS(SET(0x80000000)) SLOT_IS(SET(0x40000000)) SLOT_IS(SET(0x20000000)) SLOT_IS(SET(0x10000000))
            SLOT_IS(SET(0x08000000)) SLOT_IS(SET(0x04000000)) SLOT_IS(SET(0x02000000)) SLOT_IS(SET(0x01000000))
            GENERATION_IS(0) GENERATION_IS(SET(0x80000000))
        }
    }

    apply {
        check.apply();
    }
}

#endif
