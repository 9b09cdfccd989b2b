// The packet format of protos/README.md as constants. tests/p4/test_layout.py compares them with inagg_wire.

#ifndef INAGG_LAYOUT
#define INAGG_LAYOUT

const bit<16> MAGIC = 0x494E;
const bit<8> VERSION = 1;
const bit<16> HEADER_BYTES = 24;

const bit<8> KIND_CONTRIBUTION = 1;
const bit<8> KIND_RESULT = 2;
const bit<8> KIND_NOTICE = 3;
const bit<8> KIND_ACK = 4;

const bit<8> OP_SUM = 1;
const bit<8> OP_MAX = 2;

const bit<8> FORMAT_NAT8 = 1;
const bit<8> FORMAT_NAT4 = 2;
const bit<8> FORMAT_TERN = 3;
const bit<8> FORMAT_DITH8 = 4;
const bit<8> FORMAT_FIX32 = 5;
const bit<8> FORMAT_INT4 = 6;
const bit<8> FORMAT_INT8 = 7;
const bit<8> FORMAT_INT16 = 8;
const bit<8> FORMAT_SCALE8 = 9;

// Why a datagram is not used: indices of the counter `refused`. In the order in which they are checked.
const bit<8> REASON_NONE = 0;
const bit<8> REASON_TOO_SHORT = 1;
const bit<8> REASON_BAD_MAGIC = 2;
const bit<8> REASON_BAD_VERSION = 3;
const bit<8> REASON_BAD_KIND = 4;
const bit<8> REASON_BAD_OP = 5;
const bit<8> REASON_BAD_FORMAT = 6;
const bit<8> REASON_BAD_LANES = 7;
const bit<8> REASON_BAD_OWNER = 8;
const bit<8> REASON_BAD_JOB = 9;
const bit<8> REASON_BAD_TOKEN = 10;
const bit<8> REASON_BAD_SLOT = 11;
const bit<8> REASON_BAD_GENERATION = 12;
const bit<8> REASON_TRUNCATED = 13;
const bit<8> REASON_TRAILING_BYTES = 14;
const bit<8> REASON_WRONG_KIND = 32;
const bit<8> REASON_UNKNOWN_JOB = 33;
const bit<8> REASON_UNKNOWN_SOURCE = 34;
const bit<8> REASON_WRONG_TOKEN = 35;
const bit<8> REASON_WRONG_FORMAT = 36;
const bit<8> REASON_WRONG_LANES = 37;
const bit<8> REASON_SLOT_OUTSIDE_LEASE = 38;
const bit<8> REASON_STALE = 39;
const bit<8> REASON_WRONG_OP = 40;
const bit<8> REASON_DUPLICATE = 41;
const bit<8> REASON_OUTSIDE_WINDOW = 42;
const bit<8> REASON_WRONG_OWNER = 43;  // checked before 39

// What a kernel drops before a socket sees it. No number of the packet format: never in a notice.
const bit<8> LINK_MALFORMED = 48;    // the frame is shorter than its lengths say, or they contradict each other
const bit<8> LINK_IP_CHECKSUM = 49;  // the checksum of the IPv4 header is wrong
const bit<8> LINK_FRAGMENT = 50;     // a fragment: a switch does not put datagrams together

// To whom a frame is, as the table `local` says.
const bit<8> TO_NOBODY = 0;     // not to an address of the switch
const bit<8> TO_SWITCH = 1;     // ARP, ping
const bit<8> TO_DATA_PORT = 2;  // the aggregation

// A job has a row of cells in each array of counters. In those by worker it has one for each child (a worker, or the switch
// below in its place), at row * CHILDREN_MAX + rank; in the others one, or as many as is said here.
const int CHILDREN_MAX = 32;
const int REASONS = 64;        // cells of `refused`, by REASON_ or LINK_
const int SENT_CELLS = 4;      // of `sent`, by what goes out: OP_ for a result, or
const int SENT_NOTICE = 0;     // (in the first row alone: who is refused may be of no job)
const int SENT_ACK = 3;
const int SENT_PARTIAL = 3;    // at a leaf, which sends no acknowledgements
const int PARTIAL_CELLS = 4;   // of `partials`: op - 1, and 2 more for one that has gone up before
const int INVALID_CELLS = 16;  // of `invalid_codes`, by bit of their number, of which a datagram uses
const int INVALID_BITS = 9;    // as it has up to 256 lanes

const int ETHERNET_BYTES = 14;
const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP = 0x0806;
const bit<8> PROTOCOL_ICMP = 1;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> IPV4_BYTES = 20;
const bit<16> UDP_BYTES = 8;
const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY = 2;
const bit<8> ICMP_ECHO_REPLY = 0;
const bit<8> ICMP_ECHO_REQUEST = 8;

#endif
