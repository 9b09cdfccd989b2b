// One lane's accumulators, one for each pass and slot. A control for each stage: lanes.p4.

control LANE_AT(STAGE)(in bit<8> what, in bit<16> index, inout bit<32> value) {
    Register<bit<32>, bit<SLOT_BITS>>(1 << SLOT_BITS, 0) acc;

    RegisterAction<bit<32>, bit<SLOT_BITS>, bit<32>>(acc) start = {
        void apply(inout bit<32> sum, out bit<32> after) {
            sum = value;
            after = sum;
        }
    };
    RegisterAction<bit<32>, bit<SLOT_BITS>, bit<32>>(acc) add = {
        void apply(inout bit<32> sum, out bit<32> after) {
            sum = sum + value;
            after = sum;
        }
    };
    RegisterAction<bit<32>, bit<SLOT_BITS>, bit<32>>(acc) maximum = {
        void apply(inout bit<32> sum, out bit<32> after) {
            sum = max(sum, value);
            after = sum;
        }
    };
    RegisterAction<bit<32>, bit<SLOT_BITS>, bit<32>>(acc) read = {
        void apply(inout bit<32> sum, out bit<32> after) {
            after = sum;
        }
    };

    action do_start() {
        value = start.execute(index[SLOT_BITS - 1:0]);
    }
    action do_add() {
        value = add.execute(index[SLOT_BITS - 1:0]);
    }
    action do_maximum() {
        value = maximum.execute(index[SLOT_BITS - 1:0]);
    }
    action do_read() {
        value = read.execute(index[SLOT_BITS - 1:0]);
    }

    @hidden
    @stage(STAGE)
    table accumulate {
        key = { what : exact; }
        actions = { do_start; do_add; do_maximum; do_read; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            LANES_START : do_start();
            LANES_ADD : do_add();
            LANES_MAX : do_maximum();
            LANES_READ : do_read();
        }
    }

    apply {
        accumulate.apply();
    }
}
