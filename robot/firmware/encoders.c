#include "encoders.h"

#include "board.h"
#include "steps.h"

/*
 * The table's index: pole B, pole A, cart B, cart A before an edge in the high half, after it in the low half. One table for
 * both encoders, so that one interrupt serves edges that come together. Its low address byte is the index: nothing to add.
 */
uint8_t encoder_steps[256] __attribute__((aligned(256), used));
volatile uint16_t encoder_cart_count __attribute__((used)), encoder_pole_count __attribute__((used));

static int32_t cart_total, pole_total;
static encoder_counts_t last;

/* Where in its cycle of four an encoder is: 00, 01, 11, 10 (B, A) are 0, 1, 2, 3. */
static uint8_t phase(uint8_t channels)
{
    channels &= 3;
    return channels ^ (channels >> 1);
}

static uint8_t step_of(uint8_t before, uint8_t after, uint8_t step_bit, uint8_t back_bit)
{
    switch ((uint8_t)(phase(after) - phase(before)) & 3) {
    case 0:
        return 0;
    case 1:
        return 1 << step_bit;
    case 3:
        return 1 << step_bit | 1 << back_bit;
    default:
        return 1 << SLIP_BIT;
    }
}

void encoders_start(void)
{
    for (uint16_t i = 0; i < 256; i++) {
        uint8_t before = i >> 4, after = i & 0x0F;
        encoder_steps[i] = step_of(before, after, CART_STEP_BIT, CART_BACK_BIT) |
                           step_of(before >> 2, after >> 2, POLE_STEP_BIT, POLE_BACK_BIT);
    }
    /* Encoders have open collectors or push-pull outputs; a pull-up serves both, and a plug that is out reads steady. */
    ENCODER_PORT |= 0x0F;
    ENCODER_INTERRUPT_MASK = 0x0F;
    CHANNELS_BEFORE = ENCODER_PINS << 4;
    SLIPPED = 0;
    PCICR = ENCODER_INTERRUPT_ENABLE;
}

encoder_counts_t encoders_latch(void)
{
    return (encoder_counts_t){encoder_cart_count, encoder_pole_count};
}

void encoders_extend(encoder_counts_t latched)
{
    cart_total += (int16_t)(latched.cart - last.cart);
    pole_total += (int16_t)(latched.pole - last.pole);
    last = latched;
}

int32_t encoders_cart(void)
{
    return cart_total;
}

int32_t encoders_pole(void)
{
    return pole_total;
}

bool encoders_slipped(void)
{
    return SLIPPED;
}

void encoders_clear_slip(void)
{
    SLIPPED = 0;
}
