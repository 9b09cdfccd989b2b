// Numbers that the control plane knows, too; tests/p4/test_layout.py compares them.

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
