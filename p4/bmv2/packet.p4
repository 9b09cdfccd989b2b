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

// At a leaf: which way what is complete goes. Elsewhere nothing is set, and it is a result.
struct way_t {
    bool up;     // a partial sum, to the parent
    bool asked;  // which it had: a child has repeated its contribution
    bool again;  // the result that is here, to one child
    bool taken;  // the parent's result, to all children
}

struct metadata_t {
    bit<16> payload;      // bytes after the inagg header, as UDP has it
    bit<16> chunks;       // chunks still to parse
    bit<32> address;      // IPv4: where to, or (ARP) of whom
    bit<1> whole;         // the payload is what lanes and format say, and fits this program
    bool flooded;         // goes to all ports but the one that it came from
    bool made;            // a result or a notice: this switch made it
    bit<16> sent;         // index of the counter `sent`
    bit<16> row;          // of the job, in counters
    bit<16> worker;       // row * 32 + rank of the one that is answered
}

// Bytes that lanes take in a format: a shift, as all widths are powers of two.
bit<32> payload_bytes(in bit<8> format, in bit<16> lanes) {
    bit<32> wide = (bit<32>)lanes;
    return format == FORMAT_TERN ? wide >> 2 :
        (format == FORMAT_NAT4 || format == FORMAT_INT4 ? wide >> 1 :
        (format == FORMAT_INT16 ? wide << 1 :
        (format == FORMAT_FIX32 ? wide << 2 : wide)));
}
