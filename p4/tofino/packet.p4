// The headers of a frame and what Tofino keeps of a packet.
//
// A pass adds up one chunk of 32 lanes (passes.p4). The first lanes of a chunk, the late ones, meet their accumulators in the
// last stages of the ingress, too late to be encoded there: their sums travel to the egress in a header of their own
// (`sums`), in front of the frame. Between two passes their codes stay in front of it (`coded` of the next pass); in the last
// pass, that of the first chunk, they go behind the header. So the egress parser need not look at any lane: it can parse 160
// bytes.

// M(lane, stage of its accumulators, stage of its codes). A stage has four register actions and room for about eight
// ternary tables. The stages are written down as the compiler, left to itself, was still trying after ten minutes which
// four of all lanes to put into one. With the codes of late lanes it may do as it likes (a warning).
#define EACH_LATE(M) M(0, 9, 3) M(1, 9, 3) M(2, 9, 4) M(3, 9, 4) \
    M(4, 10, 5) M(5, 10, 5) M(6, 10, 6) M(7, 10, 6) \
    M(8, 11, 10) M(9, 11, 10) M(10, 11, 10) M(11, 11, 10)
#define EACH_EARLY(M) M(12, 4, 7) M(13, 4, 7) M(14, 4, 7) M(15, 4, 7) \
    M(16, 5, 8) M(17, 5, 8) M(18, 5, 8) M(19, 5, 8) \
    M(20, 6, 9) M(21, 6, 9) M(22, 6, 9) M(23, 6, 9) \
    M(24, 7, 10) M(25, 7, 10) M(26, 7, 10) M(27, 7, 10) \
    M(28, 8, 11) M(29, 8, 11) M(30, 8, 11) M(31, 8, 11)
#define EACH_LANE(M) EACH_LATE(M) EACH_EARLY(M)

const bit<16> CHUNK = 32;  // lanes, so bytes, of a pass
const bit<16> ALL_HEADERS = UDP_BYTES + HEADER_BYTES;

#define CODE(i, adds, codes) bit<8> l##i;
#define SUM(i, adds, codes) bit<32> l##i;
header late_t { EACH_LATE(CODE) }
header early_t { EACH_EARLY(CODE) }
header sums_t { EACH_LATE(SUM) }

// A chunk that is none of this pass's. No table touches it, so it stands in containers that none can reach; a collection
// of these is four of 32 bits, six of 16 and four of 8.
header ahead_t {
    bit<32> a;
    bit<32> b;
    bit<32> c;
    bit<32> d;
    bit<16> e;
    bit<16> f;
    bit<16> g;
    bit<16> h;
    bit<16> i;
    bit<16> j;
    bit<16> k;
    bit<16> l;
}

header coded_t {  // the codes of the late lanes of the pass before
    bit<32> a;
    bit<32> b;
    bit<32> c;
}

// What the ingress tells the egress, in front of every frame.
header bridge_t {
    bit<8> made;  // MADE_
    @padding bit<7> pad;
    bit<9> ingress_port;
}

// What a pass tells the next one, in front of the frame. Parsed from loopback ports alone.
header carry_t {
    bit<8> place;   // of the next pass
    bit<8> complete;
    bit<16> index;  // of the next pass
}

// What the egress needs to encode late lanes, besides their sums.
header noise_t {
    bit<32> group;
    bit<8> op;
}

const bit<8> MADE_NOTHING = 0;
const bit<8> MADE_RESULT = 1;
const bit<8> MADE_NOTICE = 2;
const bit<8> MADE_FLOOD = 3;  // a copy for each port
const bit<8> MADE_PASS = 4;   // goes on to the next pass

// What a pass is: of a datagram that has come from a port or from the pass before, and in the lowest two bits the number
// of its chunk.
const bit<8> PLACE_NONE = 0;      // not as long as a contribution
const bit<8> PLACE_FIRST = 0x40;
const bit<8> PLACE_LATER = 0x80;
#define IS_FIRST(place) place[7:7] == 0

// Whether the sums are complete: of a pass, or of all so far. Of two passes the larger number counts.
const bit<8> COMPLETE_BEFORE = 0;  // the contribution is a repeated one
const bit<8> COMPLETE_NOW = 1;     // by this contribution
const bit<8> COMPLETE_NOT = 2;

struct headers_t {
    bridge_t bridge;
    carry_t carry;
    noise_t noise;
    sums_t sums;
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    icmp_t icmp;
    udp_t udp;
    inagg_t inagg;
    ahead_t ahead_3;
    ahead_t ahead_2;
    ahead_t ahead_1;
    late_t late;
    early_t early;
    coded_t coded;
}

// Of a port, as the control plane says.
struct port_t {
    bit<8> loopback;  // 1: what comes from it is what the egress has sent to it
}

// What the slot makes of a contribution.
// The values are those of a register action's predicate: bit (first comparison) + 2 * (second comparison).
const bit<8> SLOT_UNTOUCHED = 0;
const bit<8> SLOT_STALE = 1;
const bit<8> SLOT_NEW = 2;   // the first of its generation
const bit<8> SLOT_SAME = 4;  // of the generation that the slot serves

// Who is missing in a sum in which all are: bit 31, which no worker has, as a register action cannot return all ones.
const bit<32> NOBODY = 0x80000000;

// How to read codes: ceil(log2 n) in a sum of n, and this in a maximum.
const bit<8> MODE_MAX = 7;

// What the lanes do.
const bit<8> LANES_NOTHING = 0;
const bit<8> LANES_START = 1;
const bit<8> LANES_ADD = 2;
const bit<8> LANES_MAX = 3;
const bit<8> LANES_READ = 4;

// What became of an admitted contribution in its first pass: cells of the counter `outcomes`, of which a worker has so many.
const int OUTCOME_CELLS = 8;
const bit<3> OUTCOME_WRONG_OP = 0;
const bit<3> OUTCOME_STALE = 1;
const bit<3> OUTCOME_DUPLICATE = 2;
const bit<3> OUTCOME_REPEATED = 3;  // the sums of the pass are complete
const bit<3> OUTCOME_ABSORBED = 4;
const bit<3> OUTCOME_COMPLETED = 5;

// What a pass does with a contribution: cells of the counter `answers`, of which a worker has so many.
const int ANSWER_CELLS = 4;
const bit<2> ANSWER_NOTHING = 0;
const bit<2> ANSWER_ONE = 1;   // the result to the worker
const bit<2> ANSWER_ALL = 2;   // the result to all
const bit<2> ANSWER_PASS = 3;  // on to the next pass

struct metadata_t {
    port_t from;
    bit<8> place;         // PLACE_
    bit<16> index;        // of all registers: the pass and the slot
    bit<8> so_far;        // COMPLETE_, of the passes before
    bit<8> fragment;      // 1: of a UDP datagram
    bit<32> address;      // IPv4: where to, or (ARP) of whom
    bit<16> port;         // UDP: where to, else 0
    bool bad_checksum;
    bit<8> to;            // TO_
    bit<8> ours;          // 1: to the switch's own Ethernet address
    bit<48> own_mac;
    bit<8> malformed;     // reason of the header alone
    bit<8> refusal;       // reason of the binding
    bit<8> reason;        // the one that counts
    bit<8> member;        // 1: the binding took it
    bit<10> worker;       // row * CHILDREN_MAX + rank
    bit<8> rank;
    bit<32> others;       // the bits of the other workers, and NOBODY
    bit<32> op;           // the datagram's, as wide as its register
    bit<8> mode;          // how to read codes: MODE_MAX
    bit<32> seed;
    bit<16> group;
    bit<9> asker;         // the port of the worker
    bit<8> next_place;    // of the next pass; 0 if there is none
    bit<9> next_port;     // that leads there
    bit<8> slot_state;    // SLOT_
    bit<32> missing;      // who was missing before this contribution, and NOBODY
    bit<8> lanes;         // LANES_
    bit<8> complete;      // COMPLETE_, of this pass
    bit<3> outcome;       // OUTCOME_
    bit<2> answer;        // ANSWER_
    bit<16> wants;        // bytes of the lanes, as format and lanes say
    bit<16> beyond;       // bytes of the datagram less these; 0 if there are fewer
    bit<32> odd_a;        // noise and words for the encoding: lanes.p4
    bit<32> odd_b;
    bit<32> even_a;
    bit<32> even_b;
    bit<32> addend_a0;
    bit<32> addend_a1;
    bit<32> addend_b0;
    bit<32> addend_b1;
    EACH_EARLY(SUM)
}

struct egress_metadata_t {}
