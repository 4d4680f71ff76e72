/* The bridge: PWM and direction. Voltage is duty times the supply's. */
#ifndef MOTOR_H
#define MOTOR_H

#include <stdint.h>

/* 20 kHz, above hearing; a step is 1/800 of the supply. */
#define PWM_STEPS 800

/* Call first of all: pins low. */
void motor_start(void);

/*
 * Drive. Rounded towards zero, and never more than VOLTAGE_LIMIT_MV.
 *
 * Call while the guard is held.
 */
void motor_set(int16_t steps);

/* Steps of duty for a voltage, cut to the limit. It divides, so call it while the guard is not held. */
int16_t motor_steps(int16_t voltage_mv);

/* 0 V: the bridge connects both ends of the motor, which brakes it. From anywhere. */
void motor_cut(void);

/* What the motor has now. */
int16_t motor_voltage_mv(void);

/* -1, 0 or 1 */
int8_t motor_direction(void);

#endif
