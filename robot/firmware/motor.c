#include "motor.h"

#include <util/atomic.h>

#include "board.h"

/* The last word on voltage, whatever the rest of this program believes. */
#define MOST_STEPS ((int16_t)((uint32_t)VOLTAGE_LIMIT_MV * PWM_STEPS / SUPPLY_MV))

_Static_assert((uint32_t)VOLTAGE_LIMIT_MV * PWM_STEPS / SUPPLY_MV >= 1, "VOLTAGE_LIMIT_MV is less than one step of the PWM");

#define FAST_PWM_TO_ICR1_A (1 << WGM11)
#define FAST_PWM_TO_ICR1_B ((1 << WGM13) | (1 << WGM12))
#define PIN_FOLLOWS_TIMER (1 << COM1A1)
#define NO_PRESCALER (1 << CS10)

static volatile int16_t applied_steps;

void motor_start(void)
{
    MOTOR_PORT &= ~((1 << MOTOR_PWM_PIN) | (1 << MOTOR_DIRECTION_PIN));
    MOTOR_DDR |= (1 << MOTOR_PWM_PIN) | (1 << MOTOR_DIRECTION_PIN);
    ICR1 = PWM_STEPS - 1;
    OCR1A = 0;
    TCCR1A = FAST_PWM_TO_ICR1_A;
    TCCR1B = FAST_PWM_TO_ICR1_B | NO_PRESCALER;
}

int16_t motor_steps(int16_t voltage_mv)
{
    int16_t steps = (int32_t)voltage_mv * PWM_STEPS / SUPPLY_MV;
    if (steps > MOST_STEPS)
        return MOST_STEPS;
    return steps < -MOST_STEPS ? -MOST_STEPS : steps;
}

void motor_cut(void)
{
    /* The pin's own latch is low: without the timer it stays there, at once and not at the end of a period. */
    TCCR1A = FAST_PWM_TO_ICR1_A;
    applied_steps = 0;
}

void motor_set(int16_t steps)
{
    if (steps > MOST_STEPS)
        steps = MOST_STEPS;
    else if (steps < -MOST_STEPS)
        steps = -MOST_STEPS;
    if ((steps ^ applied_steps) < 0 || steps == 0)
        motor_cut();
    if (steps == 0)
        return;
    if (steps < 0)
        MOTOR_PORT |= 1 << MOTOR_DIRECTION_PIN;
    else
        MOTOR_PORT &= ~(1 << MOTOR_DIRECTION_PIN);
    /* The pin is high for OCR1A + 1 of the period's steps, which is why 0 V is the pin's latch and not a duty. */
    OCR1A = (steps < 0 ? -steps : steps) - 1;
    /* A new duty counts from the next period on. From 0 V, or in the other direction, that one begins now: no rest of the old. */
    if (applied_steps == 0)
        /* One before the last: a counter that is set to its top does not see that it is there, and runs on to 65,535. */
        TCNT1 = PWM_STEPS - 2;
    TCCR1A = FAST_PWM_TO_ICR1_A | PIN_FOLLOWS_TIMER;
    applied_steps = steps;
}

int16_t motor_voltage_mv(void)
{
    int16_t steps;
    ATOMIC_BLOCK(ATOMIC_RESTORESTATE)
    {
        steps = applied_steps;
    }
    return (int32_t)steps * SUPPLY_MV / PWM_STEPS;
}

int8_t motor_direction(void)
{
    /* Only the guard asks. */
    return (applied_steps > 0) - (applied_steps < 0);
}
