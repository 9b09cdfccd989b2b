// The switch's own address answers ARP requests and pings, in the data plane: as bmv2/reply.p4, in one table.

control Reply(inout headers_t hdr, in bit<48> own_mac, out bool replied) {
    // Turns the request into its answer. The caller sends it back out of the port that it came from.
    action back() {
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = own_mac;
        replied = true;
    }
    action arp() {
        bit<32> asked = hdr.arp.target;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender_mac = own_mac;
        hdr.arp.sender = asked;
        back();
    }
    // RFC 1624 for a first word that falls from 0x0800 to 0: add 0x0800, and the carry at the low end. IPv4's checksum
    // stays, as a sum does not mind order.
    action ping(bit<16> more) {
        bit<32> asked = hdr.ipv4.destination;
        hdr.icmp.type = ICMP_ECHO_REPLY;
        hdr.icmp.checksum = hdr.icmp.checksum + more;
        hdr.ipv4.destination = hdr.ipv4.source;
        hdr.ipv4.source = asked;
        back();
    }
    action nothing() {
        replied = false;
    }

    @hidden
    table answers {
        key = {
            hdr.arp.isValid() : ternary;
            hdr.arp.operation : ternary;
            hdr.icmp.isValid() : ternary;
            hdr.icmp.type : ternary;
            hdr.icmp.code : ternary;
            hdr.icmp.checksum : ternary;
        }
        actions = { arp; ping; nothing; }
        const default_action = nothing();
        const entries = {
            (true, ARP_REQUEST, _, _, _, _) : arp();
            (_, _, true, ICMP_ECHO_REQUEST, 0, 0xF800 &&& 0xF800) : ping(0x0801);
            (_, _, true, ICMP_ECHO_REQUEST, 0, _) : ping(0x0800);
        }
    }

    apply {
        answers.apply();
    }
}
