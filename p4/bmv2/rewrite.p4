// Turns a contribution into what this switch makes of it, and sends that on its way to the sender; the egress gives the
// copies of a multicast result the addresses of the other workers. The lanes are in place already.

control Rewrite(inout headers_t hdr, in bit<48> own_mac, in bit<8> kind, in bit<8> format) {
    apply {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = own_mac;
        bit<32> own_address = hdr.ipv4.destination;
        hdr.ipv4.destination = hdr.ipv4.source;
        hdr.ipv4.source = own_address;
        bit<16> own_port = hdr.udp.destination;
        hdr.udp.destination = hdr.udp.source;
        hdr.udp.source = own_port;

        hdr.inagg.kind = kind;
        hdr.inagg.format = format;
        hdr.udp.length = UDP_BYTES + HEADER_BYTES + (bit<16>)payload_bytes(format, hdr.inagg.lanes);
        hdr.udp.checksum = 0;  // none, which IPv4 allows: see p4/README.md
        hdr.ipv4.tos = 0;
        hdr.ipv4.total_length = IPV4_BYTES + hdr.udp.length;
        hdr.ipv4.identification = 0;  // RFC 6864: of no meaning in what is not fragmented
        hdr.ipv4.flags = 2;           // don't fragment
        hdr.ipv4.ttl = 64;
    }
}
