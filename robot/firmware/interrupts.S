/*
 * The two interrupts that come most often, by hand: an encoder's edge must be read before the next one comes, and waits for
 * whichever of the two is running. A compiler saves registers first and reads the pins after 28 cycles; this does after 10.
 *
 * Cycles are counted with the 7 that the chip needs to get here, and for the ATmega328P. The ATmega2560 needs 2 more.
 */
#define __SFR_OFFSET 0
#include <avr/io.h>

#include "board.h"
#include "steps.h"

.macro COUNT counter, back_bit
    lds     r30, \counter
    lds     r31, \counter + 1
    sbrc    r24, \back_bit
    sbiw    r30, 2              ; back: two less, one more
    adiw    r30, 1
    sts     \counter, r30
    sts     \counter + 1, r31
.endm

/* An edge: 59 cycles, 71 if both encoders made a step. Its C is in encoders.c, encoders_start(). */
.global ENCODER_INTERRUPT
ENCODER_INTERRUPT:
    push    r30
    in      r30, ENCODER_PINS
    push    r24
    in      r24, SREG
    push    r24
    push    r31
    andi    r30, 0x0F
    mov     r31, r30
    in      r24, CHANNELS_BEFORE
    or      r30, r24            ; before in the high half, after in the low half
    swap    r31
    out     CHANNELS_BEFORE, r31
    ldi     r31, hi8(encoder_steps)
    ld      r24, Z
    sbrs    r24, CART_STEP_BIT
    rjmp    1f
    COUNT   encoder_cart_count, CART_BACK_BIT
1:  sbrs    r24, POLE_STEP_BIT
    rjmp    2f
    COUNT   encoder_pole_count, POLE_BACK_BIT
2:  sbrc    r24, SLIP_BIT
    out     SLIPPED, r24        ; anything but zero
    pop     r31
    pop     r24
    out     SREG, r24
    pop     r24
    pop     r30
    reti

/* A byte from the line, into the ring of serial.c: 39 cycles. */
.global SERIAL_RECEIVED_INTERRUPT
SERIAL_RECEIVED_INTERRUPT:
    push    r24
    in      r24, SREG
    push    r24
    push    r30
    push    r31
    lds     r30, serial_head
    ldi     r31, hi8(serial_ring)
    lds     r24, UDR0
    st      Z, r24
    inc     r30
    sts     serial_head, r30
    pop     r31
    pop     r30
    pop     r24
    out     SREG, r24
    pop     r24
    reti
