//! Schedules and templates in a snapshot.

use longshore_protocol::limits::SCHEDULE_NAME_BYTES_MAX;
use longshore_protocol::messages::work::NextOccurrence;
use longshore_protocol::{
    Decode, Encode, EntryHead, FrameWriter, JobId, JobKeys, JobOptions, Reader, Refusal, Schedule,
    WireError,
};

use super::super::{SnapshotError, State};
use super::ScheduleEntry;
use super::template::Template;
use crate::outcome::RecordRef;

impl State {
    /// Counts the jobs of each template, after a restore.
    pub(in super::super) fn count_jobs_of_templates(&mut self) -> Result<(), SnapshotError> {
        for (_, side) in self.sides.iter() {
            let Some(template) = side.template else { continue };
            let known = self.schedules.templates.add_use(template);
            known.ok_or(SnapshotError::Inconsistent("the template of a job"))?;
        }
        Ok(())
    }
}

impl Encode for ScheduleEntry {
    fn encode(&self, out: &mut FrameWriter) {
        self.schedule.encode(out);
        out.u64(u64::from(self.queue));
        out.u64(u64::from(self.template));
        out.u64(self.created_at);
        out.bool(self.paused);
        self.next.encode(out);
        self.last_at.encode(out);
        self.recent.iter().for_each(|job| job.encode(out));
        for count in [self.made, self.missed, self.overlapped, self.refused] {
            out.u64(count);
        }
        self.last_refusal.encode(out);
    }
}

impl Decode for ScheduleEntry {
    fn decode(r: &mut Reader) -> Result<ScheduleEntry, WireError> {
        Ok(ScheduleEntry {
            schedule: Schedule::decode(r)?.into(),
            queue: r.u32()?,
            template: r.u32()?,
            created_at: r.u64()?,
            paused: r.bool()?,
            next: r.option::<NextOccurrence>()?,
            last_at: r.option()?,
            recent: [r.option::<JobId>()?, r.option()?],
            made: r.u64()?,
            missed: r.u64()?,
            overlapped: r.u64()?,
            refused: r.u64()?,
            last_refusal: r.option::<Refusal>()?,
        })
    }
}

impl Encode for Template {
    fn encode(&self, out: &mut FrameWriter) {
        self.entry.encode(out);
        out.u32_fixed(self.head_crc);
        out.u32_fixed(self.head.crc);
        out.u64(self.head.payload_len as u64);
        self.head.options.encode(out);
        out.bool(self.head.keys.is_some());
        if let Some(keys) = &self.head.keys {
            keys.encode(out);
        }
        out.string(&self.name);
    }
}

impl Decode for Template {
    fn decode(r: &mut Reader) -> Result<Template, WireError> {
        let entry = RecordRef::decode(r)?;
        let (head_crc, crc) = (r.u32_fixed()?, r.u32_fixed()?);
        let overlong = r.invalid("payload of a template");
        let payload_len = r.u32()?;
        // A row stores the length of what comes before the payload in 16 bits.
        if entry.length.checked_sub(payload_len).is_none_or(|head| head > u32::from(u16::MAX)) {
            return Err(overlong);
        }
        let options = r.option::<JobOptions>()?;
        let keys = if r.bool()? { Some(Box::new(JobKeys::decode(r)?)) } else { None };
        let payload_len = payload_len as usize;
        let head = EntryHead { id: JobId::default(), crc, options, keys, payload_len };
        let name = r.string("name of a schedule", SCHEDULE_NAME_BYTES_MAX)?;
        Ok(Template { entry, head_crc, head: Box::new(head), name, uses: 0 })
    }
}
