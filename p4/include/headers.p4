// Headers of a frame, on every target.

#ifndef INAGG_HEADERS
#define INAGG_HEADERS

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

header arp_t {  // for IPv4 over Ethernet
    bit<16> hardware;
    bit<16> protocol;
    bit<8> hardware_bytes;
    bit<8> protocol_bytes;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender;
    bit<48> target_mac;
    bit<32> target;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header icmp_t {  // what follows stays payload
    bit<8> type;
    bit<8> code;
    bit<16> checksum;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header inagg_t {
    bit<16> magic;
    bit<8> version;
    bit<8> kind;
    bit<8> op;
    bit<8> format;
    bit<16> lanes;
    bit<16> job;
    bit<16> owner;  // in a notice: the reason
    bit<32> token;
    bit<32> slot;
    bit<32> generation;
}

#endif
