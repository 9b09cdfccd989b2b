// Step 3 of encode.p4. A control for each stage: lanes.p4.

control CODE_AT(STAGE)(in bit<32> rounded, in bit<8> op, inout bit<8> code) {
    action set(bit<8> it) {
        code = it;
    }
    @hidden
    @stage(STAGE)
    table leading {
        key = {
            rounded : ternary;
            op : ternary;
        }
        actions = { set; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            EACH_BYTE(CODE_SCALE)
            (0, OP_SUM) : set(0);
            EACH_POSITION(CODE_UP)
            EACH_POSITION(CODE_DOWN)
        }
    }

    apply {
        leading.apply();
    }
}
