// The headers of a frame and what bmv2 keeps of a packet from parser to deparser.

// 8 lanes of one width. A chunk of 8 lanes is a whole number of bytes in every encoding.
#define CHUNK(name, bits) header name { \
    bit<bits> l0; bit<bits> l1; bit<bits> l2; bit<bits> l3; bit<bits> l4; bit<bits> l5; bit<bits> l6; bit<bits> l7; \
}
CHUNK(lanes2_t, 2)
CHUNK(lanes4_t, 4)
CHUNK(lanes8_t, 8)
CHUNK(lanes16_t, 16)
CHUNK(lanes32_t, 32)

struct headers_t {
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    icmp_t icmp;
    udp_t udp;
    inagg_t inagg;
    lanes8_t[CHUNKS] bytes;  // MAX both ways, and what else has 8 bits a lane
    FORMAT_STACKS            // the other widths of this build's format
}

struct metadata_t {
    bit<16> payload;   // bytes after the inagg header, as UDP has it
    bit<16> chunks;    // chunks still to parse
    bit<1> payload_ok;  // the payload is what lanes and format say, and fits this program
    bit<32> address;   // IPv4: where to, or (ARP) of whom
    bit<16> port;      // UDP: where to, else 0
    bit<8> fragment;   // 1: of a UDP datagram
    bit<8> to;         // TO_
    bit<8> ours;       // 1: to the switch's own Ethernet address
    bit<48> own_mac;
    bool flooded;      // goes to all ports but the one that it came from
    bool made;         // this switch made it: a result, a notice, a partial sum
    bit<16> sent;      // index of the counter `sent`
    bit<16> row;       // of the job, in counters
    bit<16> worker;    // row * CHILDREN_MAX + rank of the one that is answered
}

// What a datagram does to its slot, and what goes out for it. Nothing of it is set: nothing, or it is refused.
struct effect_t {
    bool contributes;         // its lanes go into the accumulators,
    bool first;               // which begin with them
    bool complete;            // the sum is: something goes out
    bool resend;              // a result that has gone out before, to one worker
    // At a leaf:
    bool from_parent_result;  // the parent's result takes the place of the sum, and goes to all workers
    bool up;                  // a partial sum, to the parent,
    bool repeat_up;           // which had it before
}

// Bytes that lanes take in a format: a shift, as all widths are powers of two.
bit<32> payload_bytes(in bit<8> format, in bit<16> lanes) {
    bit<32> wide = (bit<32>)lanes;
    return format == FORMAT_TERN ? wide >> 2 :
        (format == FORMAT_NAT4 || format == FORMAT_INT4 ? wide >> 1 :
        (format == FORMAT_INT16 ? wide << 1 :
        (format == FORMAT_FIX32 ? wide << 2 : wide)));
}
