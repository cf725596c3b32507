//! A training that is stopped and goes on ends with the same bits.

use candle_core::{DType, Device};
use hankelite_data::{Dataset, Source, Split};
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput,
};
use hankelite_train::nn::{PoolingKind, SequenceModel};
use hankelite_train::{Folder, Observer, Recipe, Step, Stop, Task, Training};

/// Asks for the end behind some step.
struct Until(u64, Stop);

impl Observer for Until {
    fn step(&mut self, step: &Step) {
        if step.step == self.0 {
            self.1.request();
        }
    }
}

fn network(layer: BaselineKind) -> BaselineNetwork {
    let architecture = BaselineArchitecture {
        layer,
        hidden: 6,
        layers: 2,
        inputs: Some(2),
        vocabulary: None,
        outputs: 1,
        pooling: PoolingKind::Last,
        measurements: None,
        output: BaselineOutput::Linear,
        omega1: None,
        omega2: None,
    };
    BaselineNetwork::random(&architecture, 3, DType::F32, &Device::Cpu).unwrap()
}

/// The weights of the last step, after a stop behind `stop`, if there is one.
fn trained(layer: BaselineKind, data: &Dataset, stop: Option<u64>) -> Vec<u32> {
    let folder = tempfile::tempdir().unwrap();
    let recipe = Recipe {
        steps: Some(12),
        batch: 10,
        ..Recipe::default()
    };
    let run = |stop: Option<u64>, folder: &Folder| {
        let network = network(layer);
        let training = Training {
            network: &network,
            data,
            validation: None,
            recipe: &recipe,
        };
        let flag = Stop::default();
        let mut until = Until(stop.unwrap_or(0), flag.clone());
        let (mut task, folder) = (Task::default(), Some(folder));
        training.run(&mut task, folder, &mut until, &flag).unwrap();
        network
    };
    let folder = Folder::create(folder.path().join("run"), "").unwrap();
    if stop.is_some() {
        run(stop, &folder);
    }
    let network = run(None, &folder);
    let parameters = network.parameters().iter();
    let numbers = parameters.flat_map(|one| {
        let flat = one.var.flatten_all().unwrap();
        flat.to_vec1::<f32>().unwrap()
    });
    numbers.map(f32::to_bits).collect()
}

#[test]
fn a_stopped_training_goes_on_to_the_same_bits() {
    let source: Source = "adding:length=6,count=40".parse().unwrap();
    let data = Dataset::read(&source, Some(Split::Train)).unwrap();
    for layer in [BaselineKind::Lstm, BaselineKind::SpectralRnn] {
        let whole = trained(layer, &data, None);
        assert_eq!(whole, trained(layer, &data, Some(7)), "{layer:?}");
        let start = network(layer);
        let first = start.parameters()[0].var.flatten_all().unwrap();
        let first = first.to_vec1::<f32>().unwrap();
        assert_ne!(first[0].to_bits(), whole[0]);
    }
}
