// The switch's own address answers ARP requests and pings, in the data plane.

control Reply(inout headers_t hdr, in bit<48> own_mac, out bool replied) {
    // Turns the request into its answer. The caller sends it back out of the port that it came from.
    apply {
        replied = false;
        if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            bit<32> asked = hdr.arp.target;
            hdr.arp.operation = ARP_REPLY;
            hdr.arp.target_mac = hdr.arp.sender_mac;
            hdr.arp.target = hdr.arp.sender;
            hdr.arp.sender_mac = own_mac;
            hdr.arp.sender = asked;
            replied = true;
        } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && hdr.icmp.code == 0) {
            bit<32> asked = hdr.ipv4.destination;
            hdr.icmp.type = ICMP_ECHO_REPLY;
            // RFC 1624 for a first word that falls from 0x0800 to 0: add 0x0800, and the carry at the low end.
            // IPv4's checksum stays, as a sum does not mind order.
            if (hdr.icmp.checksum >= 0xF800) {
                hdr.icmp.checksum = hdr.icmp.checksum + 0x0801;
            } else {
                hdr.icmp.checksum = hdr.icmp.checksum + 0x0800;
            }
            hdr.ipv4.destination = hdr.ipv4.source;
            hdr.ipv4.source = asked;
            replied = true;
        }
        if (replied) {
            hdr.ethernet.destination = hdr.ethernet.source;
            hdr.ethernet.source = own_mac;
        }
    }
}
